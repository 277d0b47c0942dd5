"""What Python does when a program ends, for a forked worker: it ends by `os._exit`, which does none of it.

A fork copies also what its parent still has to clean up. That stays the parent's: the first worker to end must not
remove a temporary folder that the others are yet to read.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import sys
import threading
import weakref


def leave_clean_up_to_parent() -> None:
    """Let this worker finalize nothing that was to be finalized when the parent ends, a `TemporaryDirectory` say.

    Nor end the parent's daemonic processes of multiprocessing, which it would take for its own, nor write out what is
    in the buffers of the parent's files.
    """
    gc.freeze()  # so that the collector lists what the worker makes, and nothing else
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else lists them
        finalizer.atexit = False
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes._children.clear()  # noqa: SLF001 - as multiprocessing does in its own


def end_as_python_does() -> None:
    """Wait for the script's threads and pools, or for Ctrl-C; then call exit functions, and close files left open."""
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does for its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - they also tell the other workers that this one left
    _close_files()


def _close_files() -> None:
    """Close what the script left open: `os._exit` writes out nothing that Python holds back."""
    left = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]  # of a proxy nothing is asked
    for file in sorted(left, key=_outermost_first):
        with contextlib.suppress(Exception):
            if file.fileno() > 2:  # those are flushed last
                file.close()


def _outermost_first(file: io.IOBase) -> tuple[bool, bool, bool]:
    """Text above a compressed file above the buffer above the file itself."""
    is_buffer = isinstance(file, io.BufferedWriter | io.BufferedRandom)
    return isinstance(file, io.RawIOBase), is_buffer, not isinstance(file, io.TextIOBase)


def flush_everything() -> None:
    """Write out what C and Python have buffered: before a fork, which would copy it, and before `os._exit`."""
    ctypes.CDLL(None).fflush(None)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
