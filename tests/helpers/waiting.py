"""Waits of tests."""

import time


def until(condition, said=lambda: "", seconds=60, pause=0.01):
    """Look each `pause` whether `condition()` is true; after `seconds` fail with the text that `said()` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(pause)
