"""Whether and how a run plans anew by what its workers measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replan:
    """That a run plans anew by what its workers measure (see `launcher.replanning`).

    Args:
        command: a program that answers a question; both are JSON.
        settling: seconds from the first round of an epoch, or from a look at what workers measure, to the next look.
        quiet: seconds after a plan in which nothing is planned, at least.
    """

    command: Sequence[str]
    settling: float = 5.0
    quiet: float = 60.0
