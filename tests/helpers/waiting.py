"""Waits of tests for what others bring about."""

import time


def until(condition, said=lambda: "", seconds=60):
    """Look until something is so; if it is not in time, fail with the text that `said` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.01)
