"""What Python does when a program ends, for a forked worker: it ends by `os._exit`, which does none of it.

A fork copies also what its parent still has to clean up. That stays the parent's: the first worker to end must not
remove a temporary folder that the others are yet to read.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import threading
import weakref


def leave_clean_up_to_parent() -> None:
    """Let this worker finalise nothing that was to be finalised when the parent ends, a `TemporaryDirectory` say.

    Nor end the parent's daemonic processes of multiprocessing, which it would take for its own.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else lists them
        finalizer.atexit = False
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes._children.clear()  # noqa: SLF001 - as multiprocessing does in its own


def end_as_python_does() -> None:
    """Wait for the script's threads and pools, or for Ctrl-C; then call its exit functions and those of libraries."""
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does for its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - they also tell the other workers that this one left


def flush_everything() -> None:
    """Write out what C and Python have buffered: before a fork, which would copy it, and before `os._exit`."""
    ctypes.CDLL(None).fflush(None)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
