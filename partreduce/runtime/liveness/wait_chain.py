"""Find the worker that is the actual cause of a wait.

If a worker waits for a healthy one, which waits for a stopped one, the error must name the stopped one. Each heartbeat
contains the ranks that its worker waits for; followed from worker to worker, they form chains. The last worker of a
chain blocks the rest: it sends no heartbeats, or it is alive and waits for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SILENCE_SECONDS = 1.2  # a worker without a new heartbeat for longer is reported as silent
MAX_NAMED = 4
MAX_LISTED = 8
MAX_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Sign:
    """A worker's last heartbeat: activity `text`, ranks that it waits for, and age in seconds (None: no heartbeat)."""

    text: str
    waits: tuple[int, ...]
    silent: float | None

    @property
    def is_silent(self) -> bool:
        return self.silent is None or self.silent > SILENCE_SECONDS

    def __str__(self) -> str:
        """Describe the heartbeat as a clause that follows "which"."""
        if self.silent is None:
            return "gave no sign of life"
        # A silent worker's last activity may be outdated: half a second later it may be many steps further.
        return (
            f"gave no sign of life for {self.silent:.1f} s (its last: it {self.text})" if self.is_silent else self.text
        )


def clause(rank: int, members: Sequence[int], sign: Callable[[int], Sign], seconds: float | None) -> str:
    """Describe the chain of waits of worker `rank` for an error: `waits for worker 1, which waits for worker 2, …`.

    `members` are the ranks that `rank` waits for directly; `sign` returns a worker's last heartbeat; `seconds`, if
    given, is how long it has waited.
    """
    signs, before = _chains(rank, members, sign)
    silent = [other for other in signs if signs[other].is_silent]
    # On a busy machine a heartbeat may be late; a worker that is really stopped has been silent for much longer.
    longest = max((signs[other].silent or 0.0 for other in silent), default=0.0)
    silent = [other for other in silent if signs[other].silent is None or (signs[other].silent or 0) > longest / 2]
    ends = [other for other in signs if not signs[other].waits]
    named = (silent or ends or list(members))[:MAX_NAMED]
    text = "; ".join(_path(other, signs, before) for other in named)
    return f"waits for {text}" + (f", for more than {seconds:g} s" if seconds is not None else "")


def format_workers(ranks: Sequence[int]) -> str:
    """Format ranks for a message: `worker 3`, `workers 1, 3`; only the first few of many."""
    names = ", ".join(map(str, ranks[:MAX_LISTED])) + (", …" if len(ranks) > MAX_LISTED else "")
    return f"worker {names}" if len(ranks) == 1 else f"workers {names}"


def is_diagnosed(rank: int, members: Sequence[int], sign: Callable[[int], Sign]) -> bool:
    """Return whether a worker in the chains of waits has fallen silent; the arguments are as in `clause`."""
    signs, _ = _chains(rank, members, sign)
    return any(seen.is_silent and seen.silent is not None for seen in signs.values())


def _chains(
    rank: int, members: Sequence[int], sign: Callable[[int], Sign]
) -> tuple[dict[int, Sign], dict[int, int | None]]:
    """Return, for the workers in the chains of waits, nearest first, heartbeat and predecessor, each by rank."""
    signs: dict[int, Sign] = {}
    before: dict[int, int | None] = dict.fromkeys(members)
    next_ones = list(members)
    while next_ones and len(signs) < MAX_LOOKED_AT:
        other = next_ones.pop(0)
        seen = signs[other] = sign(other)
        if not seen.is_silent:
            for further in seen.waits:
                if further != rank and further not in before:
                    before[further] = other
                    next_ones.append(further)
    return signs, before


def _path(end: int, signs: dict[int, Sign], before: dict[int, int | None]) -> str:
    chain = [end]
    while (previous := before[chain[0]]) is not None:
        chain.insert(0, previous)
    return ", which waits for ".join(f"worker {other}" for other in chain) + f", which {signs[end]}"
