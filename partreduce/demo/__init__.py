"""The demonstration: real worker processes train on real data under several schedules, which are then compared."""
