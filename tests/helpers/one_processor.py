"""Threads that mostly wait for Python's interpreter lock: on one processor it changes hands without waking another."""

import contextlib
import ctypes
import os

HERE = ctypes.CDLL(None).sched_getcpu
"""The processor on which the calling thread runs, as the kernel has chosen it."""


def stay_on(processor):
    """Keep the calling thread, and those that it starts, on a processor."""
    os.sched_setaffinity(0, {processor})


@contextlib.contextmanager
def on_one_processor():
    """Inside, the calling thread and those that it starts stay on the processor on which it is."""
    before = os.sched_getaffinity(0)
    stay_on(HERE())
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
