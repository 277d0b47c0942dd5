"""Last line: also under torchrun a script ends by an error of ours in one line, with its exit code."""

from __future__ import annotations

import sys
from types import TracebackType

from partreduce.topo.errors import PartreduceError


def end_in_one_line(*, own_process: bool = True) -> None:
    """From now on; not where the program shows errors in a way of its own, nor where somebody types it in."""
    is_typed = hasattr(sys, "ps1") or sys.flags.interactive
    if own_process and not is_typed and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, PartreduceError):
        sys.__excepthook__(kind, error, traceback)
        return
    sys.stderr.write(f"{kind.__name__}: {error}\n")
    raise SystemExit(error.exit_code)
