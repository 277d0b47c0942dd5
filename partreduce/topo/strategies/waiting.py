"""The base class of the values of a strategy's field `sync`; its defaults describe synchronous rounds."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar


class Waiting:
    """Base of the values of a strategy's field `sync`: when the average of a round applies and how old it may be."""

    __slots__ = ()

    word: ClassVar[str]
    """The name of this value in documents."""
    called: ClassVar[str] = "late averaging"
    """The noun for this value in error messages."""
    delays_gradients: ClassVar[bool] = False
    """Whether averages of gradients, not of parameters, are late."""
    protocol: ClassVar[str] = ""
    """The name of the protocol by which workers average at run time; empty if rounds are fixed."""

    @property
    def lag(self) -> int:
        """The number of rounds by which an average is applied late; 0 if it is applied at the end of its round."""
        return 0

    @property
    def late_steps(self) -> int:
        """The number of steps from sending parameters to merging their average, if less than a round; else 0."""
        return 0

    @property
    def kept(self) -> Fraction:
        """The weight of a worker's own parameters against the average when it merges them, 0 <= kept < 1."""
        return Fraction(0)

    @property
    def warm_up(self) -> int:
        """The number of rounds at the start of a run that are synchronous."""
        return 0

    def due(self, turn: int) -> int:
        """Return the number of the average after which a worker applies the result of average number `turn`.

        That is `lag` averages later if gradients are late, after the warm-up; otherwise `turn` itself.
        """
        return turn + self.lag if self.delays_gradients and turn >= self.warm_up else turn

    @property
    def takes_all(self) -> bool:
        """Whether a round averages the values of one round of all its members, so that its mixing matrix is fixed."""
        return True

    def check(self) -> None:
        """Raise ScheduleError for settings that contradict each other."""
