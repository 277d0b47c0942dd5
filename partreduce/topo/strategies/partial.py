"""eager-SGD as a value of `sync`: an all-reduce starts once a quorum of workers has arrived.

Source: Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler, Taming unbalanced training workloads in deep learning with partial
collective operations, PPoPP 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, JsonObject, Rounds
from partreduce.topo.strategies.waiting import Waiting


class QuorumStart(Choice):
    """Which worker starts a round by arriving, if the quorum is not a number of workers."""

    SOLO = "solo"
    """The first worker to arrive."""
    MAJORITY = "majority"
    """A worker that is drawn at random in each round: on average half of the others arrive before it."""


class LateGradientPolicy(Choice):
    """The round to which a gradient belongs; a worker calls the all-reduce once in each step."""

    OPEN_ROUND = "open-round"
    """The first round that the worker's communication thread has not entered yet.

    A call returns all results that are ready.
    """
    CALL = "call"
    """Round k for call k, as published; a call returns one result, so every worker calls once in each round."""


class MissedResultPolicy(Choice):
    """How a worker applies the results of rounds that ended without it."""

    EACH = "each"
    """All missed results are applied in order: workers apply the same sequence, and their parameters stay equal."""
    LATEST = "latest"
    """Only the newest result is applied, as published: parameters differ until they are synchronized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialAllReduce(JsonObject, Waiting):
    """Partial all-reduce: a round sums the gradients that are ready when it starts; late ones join the next round.

    The sum is divided by the number of all workers, contributing or not, so that every gradient has the same weight.
    `quorum`: a round starts when this many workers have arrived, or a particular one (`QuorumStart`). `staleness` C is
    the largest number of results queued for a worker: with a full queue it does not join the next round, so a gradient
    is at most C rounds late. `grace`: microseconds that a started round waits for a worker's own gradient.
    `synchronize_every`: rounds after which all workers average their models (0: never). `seed` fixes the draws of
    `majority`; `count` and `missed` are explained by their types.
    """

    word: ClassVar[str] = "partial"
    place: ClassVar[str] = "sync.partial."
    called: ClassVar[str] = "quorum"
    delays_gradients: ClassVar[bool] = True
    protocol: ClassVar[str] = "quorum"

    quorum: QuorumStart | Count
    count: LateGradientPolicy = LateGradientPolicy.OPEN_ROUND
    missed: MissedResultPolicy = MissedResultPolicy.EACH
    staleness: Count = 4
    grace: Rounds = 0
    synchronize_every: Rounds = 0
    seed: Rounds = 0

    def __post_init__(self) -> None:
        JsonObject.__post_init__(self)
        if isinstance(self.quorum, str) and not isinstance(self.quorum, QuorumStart):
            if self.quorum not in list(QuorumStart):
                raise ScheduleError(
                    f"quorum: is {self.quorum!r}; it must be a number of workers or one of {', '.join(QuorumStart)}"
                )
            object.__setattr__(self, "quorum", QuorumStart(self.quorum))

    @property
    def bound(self) -> int | None:
        """The largest delay of a gradient, in rounds; None if it is unbounded."""
        if self.missed is MissedResultPolicy.LATEST:
            return self.synchronize_every or None
        return self.staleness

    @property
    def lag(self) -> int:
        """The assumed delay of a gradient in rounds: `bound`, or 1 if there is no bound."""
        return self.bound or 1

    @property
    def keeps_equal(self) -> bool:
        """Whether all workers apply the same results in the same order, so that their parameters stay equal."""
        return self.missed is not MissedResultPolicy.LATEST

    @property
    def takes_all(self) -> bool:
        """Always False: which gradients a round averages is only known at run time."""
        return False

    def needed(self, num_workers: int) -> int:
        """Return how many of `num_workers` workers must have arrived before a round starts."""
        return min(self.quorum, num_workers) if isinstance(self.quorum, int) else 1

    def check(self) -> None:
        if self.quorum == 1:
            raise ScheduleError('sync.partial.quorum: is 1; the first worker starts a round: say "solo"')
        latest = self.missed is MissedResultPolicy.LATEST
        self._only("staleness", not latest, "the newest result replaces older ones, so none waits in a queue")
        self._only("synchronize_every", latest, f"with missed {self.missed} parameters never part")
        self._only("seed", self.quorum is QuorumStart.MAJORITY, "only the quorum majority draws a worker")

    def _only(self, name: str, has_it: bool, why: str) -> None:
        """Raise ScheduleError if the field `name` has no effect (not `has_it`) and differs from its default."""
        default = next(field.default for field in fields(self) if field.name == name)
        if not has_it and getattr(self, name) != default:
            raise ScheduleError(f"sync.partial.{name}: is {getattr(self, name)}; {why}; leave it out")

    def check_workers(self, num_workers: int) -> None:
        if isinstance(self.quorum, int) and self.quorum >= num_workers:
            rule = (
                "a quorum of all is synchronous; leave sync out" if self.quorum == num_workers else "it is at most that"
            )
            raise ScheduleError(f"sync.partial.quorum: is {self.quorum} of {num_workers} workers; {rule}")
