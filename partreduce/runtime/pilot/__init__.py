"""Run a pilot: a few dozen steps of the user's job under several schedules, to measure what averaging less costs."""
