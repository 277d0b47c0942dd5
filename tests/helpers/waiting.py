"""Waits of tests."""

import time


def until(condition, describe=lambda: "", seconds=60, pause=0.01):
    """Look each `pause` whether `condition()` is true; after `seconds` fail with the text that `said()` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, describe()
        time.sleep(pause)
