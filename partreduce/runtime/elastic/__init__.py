"""Decide which workers are members of a run, and continue with the survivors after a failure."""
