"""Threads that mostly wait for Python's interpreter lock: on one processor it changes hands without waking another.

On systems other than Linux the functions do nothing.
"""

import contextlib
import ctypes
import os
import sys

ON_LINUX = sys.platform == "linux"


def current_processor():
    """Return the number of the processor on which the calling thread runs, as the kernel has chosen it."""
    return ctypes.CDLL(None).sched_getcpu() if ON_LINUX else -1


def stay_on(processor):
    """Keep the calling thread, and those that it starts, on a processor."""
    if ON_LINUX:
        os.sched_setaffinity(0, {processor})


@contextlib.contextmanager
def on_one_processor():
    """Inside, the calling thread and those that it starts stay on the processor on which it is."""
    before = os.sched_getaffinity(0) if ON_LINUX else set()
    stay_on(current_processor())
    try:
        yield
    finally:
        if ON_LINUX:
            os.sched_setaffinity(0, before)
