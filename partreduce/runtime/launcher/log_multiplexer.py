"""Write all of a launcher's output; an error that all workers report is shown once."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from partreduce.topo.errors import DocumentError, HandshakeError, InputError, ScheduleError

MISTAKES = tuple(f"{kind.__name__}: " for kind in (InputError, DocumentError, HandshakeError, ScheduleError))
"""How lines begin that tell a mistake of the script, which all workers make."""
ALIKE_SECONDS = 0.3  # how long the first such line waits for the others


class LogMultiplexer:
    """Writes the workers' complete lines to standard output and error, or to another file."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output

    def write(self, text: str, *, errors: bool) -> None:
        stream = self._output or (sys.stderr if errors else sys.stdout)
        stream.write(text)
        stream.flush()

    def log_line(self, text: str) -> None:
        self.write(f"partreduce: {text}\n", errors=True)


def write_line(text: str) -> None:
    """Print a line of the launcher's own and flush it."""
    LogMultiplexer().log_line(text)


class ErrorDeduplicator:
    """Shows an error that several workers report with equal text only once: `[0-3] InputError: …`."""

    def __init__(self, outlet: LogMultiplexer, num_workers: int) -> None:
        self._outlet, self._num_workers = outlet, num_workers
        self._held: dict[str, tuple[float, set[int]]] = {}

    def hold(self, rank: int, line: str) -> bool:
        if not line.startswith(MISTAKES):
            return False
        self._held.setdefault(line, (time.monotonic() + ALIKE_SECONDS, set()))[1].add(rank)
        return True

    def show(self, *, everything: bool = False) -> None:
        """Print errors that have waited long enough or that all workers have reported; with `everything` all."""
        for line, (until, ranks) in list(self._held.items()):
            if everything or len(ranks) == self._num_workers or time.monotonic() > until:
                del self._held[line]
                self._outlet.write(f"[{_ranges(ranks)}] {line}\n", errors=True)


def _ranges(ranks: set[int]) -> str:
    """As in `0-3,6`."""
    starts = sorted(rank for rank in ranks if rank - 1 not in ranks)
    ends = sorted(rank for rank in ranks if rank + 1 not in ranks)
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
