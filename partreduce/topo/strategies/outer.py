"""DiLoCo's value of the *payload* axis: an outer optimizer takes what all workers moved on average as its gradient.

Source: Douillard et al., DiLoCo: distributed low-communication training of language models, 2023 (arXiv 2311.08105),
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Exact, JsonObject, take_numbers


class OuterOptimizer(Choice):
    """How the mean of what workers moved becomes the next model."""

    SGD = "sgd"
    """torch.optim.SGD, without weight decay and dampening."""


class OuterParams(Choice):
    """From which model a worker's outer step continues."""

    SHARED = "shared"
    """One that all have in common: rounds of all workers make outer steps, groups of fewer average as without them."""
    PER_WORKER = "per_worker"
    """Every worker's own, of its last round: every group makes outer steps of its mean (NoLoCo, arXiv 2506.10911)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStep(JsonObject):
    """What a round of all workers makes of their mean m, from the model a with which all began (the outer parameters).

    With the movement d = m - a and the momentum b, which begins as 0: b <- momentum * b + d, then
    a <- a + lr * (d + momentum * b) with `nesterov`, a <- a + lr * b without. Every worker continues from a.
    Plain averaging is lr 1 and momentum 0, for then a becomes m. With outer parameters per group or worker the members
    of a group take its mean for m, and each its own a and b: what is averaged are models, which is NoLoCo's with beta =
    gamma = lr.

    Numbers may be given as Python writes them: `OuterStep(lr=0.7)` is 7/10.
    """

    place: ClassVar[str] = "payload.outer."

    optimizer: OuterOptimizer = OuterOptimizer.SGD
    lr: Exact = Fraction(1)
    momentum: Exact = Fraction(0)
    nesterov: bool = False
    outer_params: OuterParams = OuterParams.SHARED

    def __post_init__(self) -> None:
        JsonObject.__post_init__(self)
        take_numbers(self, "lr", "momentum")

    @property
    def is_plain(self) -> bool:
        """Whether the mean itself is the next model."""
        return self.lr == 1 and self.momentum == 0

    @property
    def has_own_outer_params(self) -> bool:
        """Whether outer parameters differ between workers: then what a round does depends on more than their models."""
        return self.outer_params is OuterParams.PER_WORKER

    @property
    def in_words(self) -> str:
        if self.is_plain:
            return ""
        momentum = f", {'Nesterov ' if self.nesterov else ''}momentum {float(self.momentum):g}" if self.momentum else ""
        own = ", own outer parameters" if self.has_own_outer_params else ""
        return f"outer {str(self.optimizer).upper()} {float(self.lr):g}{momentum}{own}"

    def check(self) -> None:
        if self.lr <= 0:
            raise ScheduleError(f"payload.outer.lr: is {self.lr}; a learning rate is above 0")
        if not 0 <= self.momentum < 1:
            raise ScheduleError(f"payload.outer.momentum: is {self.momentum}; a momentum is at least 0 and below 1")
        if self.has_own_outer_params and self.is_plain:
            raise ScheduleError(
                "payload.outer.outer_params: is per_worker; plain averaging has no outer parameters; leave it out"
            )
        if self.nesterov and not self.momentum:
            raise ScheduleError("payload.outer.nesterov: is true; there is no momentum that it could look ahead with")


PLAIN = OuterStep()
"""The mean is the next model."""
