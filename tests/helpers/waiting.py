"""Waits of tests."""

import time


def until(condition, said=lambda: "", seconds=60):
    """Wait until `condition()` is true; after `seconds` fail with the text that `said()` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.01)
