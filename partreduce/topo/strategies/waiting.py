"""What every value of the *sync* axis answers; the defaults are those of synchronous rounds."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar


class Waiting:
    """How long a round waits for its averaging, and how old what it gets may be; synchronous by default."""

    __slots__ = ()

    word: ClassVar[str]
    """How documents call it."""
    called: ClassVar[str] = "late averaging"
    """How a refusal calls it."""
    delays_gradients: ClassVar[bool] = False
    """Whether what comes late is a gradient, so that parameters stay equal, rather than parameters."""
    protocol: ClassVar[str] = ""
    """By which protocol workers agree as it comes; empty where rounds are fixed."""

    @property
    def in_words(self) -> str:
        """What differs from synchronous, in a few words, where a command says it."""
        return ""

    @property
    def lag(self) -> int:
        """Rounds by which an averaging is late."""
        return 0

    @property
    def late_steps(self) -> int:
        """Steps by which what is averaged at a round's end is older than it; the round computes meanwhile."""
        return 0

    @property
    def kept(self) -> Fraction:
        """The share of a worker's parameters that it keeps where it takes what has been averaged."""
        return Fraction(0)

    @property
    def warm_up(self) -> int:
        """First rounds that are synchronous nevertheless."""
        return 0

    def due(self, turn: int) -> int:
        """The turn in which the averaging of `turn` is committed, as both the run-time and the simulator ask."""
        return turn + self.lag if self.delays_gradients and turn >= self.warm_up else turn

    @property
    def takes_all(self) -> bool:
        """Whether everything that a round averages is of this round, so that rounds are fixed matrices."""
        return True

    def check(self) -> None:
        """Refuse settings that do not go with one another."""
