"""Last line: also under torchrun a script ends by an error of ours in one line, with its exit code.

Where a rank of a sharded model dies, torch's own collectives fail in the others and name nobody; what the run knows of
the death is then said in their place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType

from partreduce.topo.errors import PartreduceError

_explanations: list[Callable[[BaseException], PartreduceError | None]] = []


def explain_by(explanation: Callable[[BaseException], PartreduceError | None]) -> None:
    """Ask for an explanation of every error that ends the script."""
    _explanations.append(explanation)


def explained(error: BaseException) -> BaseException:
    """What an error comes from, if somebody knows; else the error."""
    return next((known for explain in _explanations if (known := explain(error)) is not None), error)


def tell(error: PartreduceError) -> int:
    """Write the line; returns the exit code."""
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def install_excepthook(*, own_process: bool = True) -> None:
    """From now on; not where the program shows errors in a way of its own, nor where somebody types it in."""
    is_typed = hasattr(sys, "ps1") or sys.flags.interactive
    if own_process and not is_typed and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
        if threading.excepthook is threading.__excepthook__:
            threading.excepthook = _show_of_thread


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    known = explained(error)
    if not isinstance(known, PartreduceError):
        sys.__excepthook__(kind, error, traceback)
        return
    raise SystemExit(tell(known))


def _show_of_thread(ended: threading.ExceptHookArgs) -> None:
    """A thread's error is a line, too; it ends that thread alone."""
    if isinstance(ended.exc_value, PartreduceError):
        tell(ended.exc_value)
    else:
        threading.__excepthook__(ended)
