"""Run a pilot: a few dozen steps of the user's job under a few schedules, to measure the price of averaging less."""
