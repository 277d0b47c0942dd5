"""The base class of the values of the *sync* axis; its defaults describe synchronous rounds."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar


class Waiting:
    """Base of the values of the *sync* axis: when the average of a round applies and how old it may be."""

    __slots__ = ()

    word: ClassVar[str]
    """The name of this value of the *sync* axis in documents."""
    called: ClassVar[str] = "late averaging"
    """The name of this value of the *sync* axis in error messages."""
    delays_gradients: ClassVar[bool] = False
    """Whether gradients rather than parameters are late, so that parameters stay equal."""
    protocol: ClassVar[str] = ""
    """The protocol by which workers average at run time; empty if rounds are fixed."""

    @property
    def in_words(self) -> str:
        """The settings that differ from synchronous, in a few words for the output of commands."""
        return ""

    @property
    def lag(self) -> int:
        """The delay of an averaging, in rounds."""
        return 0

    @property
    def late_steps(self) -> int:
        """The delay of an averaging inside a round, in steps: from sending parameters to merging the result."""
        return 0

    @property
    def kept(self) -> Fraction:
        """The weight of a worker's own parameters when it merges an average, 0 <= kept < 1."""
        return Fraction(0)

    @property
    def warm_up(self) -> int:
        """The number of rounds at the start that are synchronous."""
        return 0

    def due(self, turn: int) -> int:
        """Return the index of the averaging operation at which the result of operation `turn` is applied.

        In a pipeline it is `lag` operations later, after the warm-up; otherwise it is the operation itself.
        """
        return turn + self.lag if self.delays_gradients and turn >= self.warm_up else turn

    @property
    def takes_all(self) -> bool:
        """Whether a round averages that round's values of all its members, so that its mixing matrix is fixed."""
        return True

    def check(self) -> None:
        """Raise ScheduleError for settings that contradict each other."""
