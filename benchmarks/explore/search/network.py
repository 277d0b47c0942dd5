"""Network: what may happen to messages and processes while the explorer watches."""

from __future__ import annotations

from dataclasses import dataclass

from partreduce.topo.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The adversary's switches.

    `delay`: a message may arrive at any later time, first in first out on each channel; without it messages arrive at
    once, which reaches every state of the workers that matters for properties that only waiting can delay.
    `reorder`: messages of one channel may overtake one another. `losses`, `duplicates`, `crashes`: how many messages
    may be lost or delivered twice and how many processes may stop for ever, in one run. With `detect` the others
    learn of a crash by a `Crashed` message on the channels that the stopped process would have used. `suspicions`: how
    often a process that goes on may be taken for dead: a machine that is `Suspecting` then gets the same message at an
    instant of the adversary's choice, ahead of everything that the suspect has on its way. `cuts`: how many processes
    may be cut off. Nothing that is sent to or from one any more arrives; what was under way either way still does, or
    is lost. Both sides of every channel then take the other one for dead, each at an instant of its own, in that same
    message: behind a cut link a process lives on.
    """

    delay: bool = True
    reorder: bool = False
    losses: int = 0
    duplicates: int = 0
    crashes: int = 0
    suspicions: int = 0
    cuts: int = 0
    detect: bool = False

    def __post_init__(self) -> None:
        """Refuse combinations that mean nothing."""
        if not self.delay and (self.reorder or self.losses or self.duplicates):
            raise InputError("network: messages that arrive at once cannot be reordered, lost or doubled; set delay")
        if self.cuts and self.reorder:
            raise InputError("network: a cut ends each channel at a place, so messages of one keep their order")
        if min(self.losses, self.duplicates, self.crashes, self.suspicions, self.cuts) < 0:
            raise InputError("network: losses, duplicates, crashes, suspicions and cuts are numbers >= 0")
