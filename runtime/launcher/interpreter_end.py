"""What Python does when a program ends, for a forked worker: it ends by `os._exit`, which does none of it.

A fork copies also what its parent still has to clean up. That stays the parent's: the first worker to end must not
remove a temporary folder that the others are yet to read.
"""

from __future__ import annotations

import atexit
import threading
import weakref


def leave_clean_up_to_parent() -> None:
    """Let what is to be finalised when the parent ends, a `TemporaryDirectory` say, not be finalised by this worker."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else lists them
        finalizer.atexit = False


def end_as_python_does() -> None:
    """Wait for the script's threads and pools, then call its exit functions and those of libraries."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does for its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - they also tell the other workers that this one left
