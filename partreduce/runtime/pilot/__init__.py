"""A pilot: a few dozen steps of the user's own job under a few schedules, to learn what averaging less costs it."""
