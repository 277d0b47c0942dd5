"""The strategy kinds of the conformance suite, each with three workers and what a reference needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Division,
    Generated,
    GroupPhases,
    How,
    Late,
    Merge,
    Neighbor,
    Outer,
    Pairwise,
    Pipeline,
    Round,
    Routes,
    Sending,
    Server,
    Static,
)
from partreduce.topo.strategies.gap import Gap, Order
from partreduce.topo.strategies.quorum import Quorum, QuorumStart

N = 3
MEAN = [[1 / 3] * 3] * 3


@dataclass(frozen=True)
class Kind:
    """A schedule, and the same by hand: mixing matrices by round for lockstep kinds, none where workers run freely."""

    strategy: object
    matrices: tuple = (MEAN,)
    pace: int = 1
    gradients: bool = False
    late: bool = False
    lag: int = 0
    """Steps by which gradients are late."""
    quorum: bool = False
    """Whether a call may take several means."""
    outer: dict | None = None
    """What torch's SGD, as the outer optimizer of a round of all, is made with."""
    turns: int = 1
    """Fragments that take turns, each merged a step late with half of a worker's own."""
    early: bool = False
    """Whether gradients leave during the backward pass."""
    free: str = ""
    """`server`, `pairwise` or `generated`: whom a worker averages with, and when, is known while it runs only."""

    @property
    def in_turn(self):
        """Whether nobody waits for others, so that workers can step in turn, and results are exact."""
        return self.free in ("server", "pairwise")

    @property
    def schedule(self):
        return Schedule("conformance", Cluster.regular(1, N), self.strategy)


FIRST_TWO = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]
LAST_TWO = [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]
RING = [[0.75, 0, 0.25], [0.25, 0.75, 0], [0, 0.25, 0.75]]
RING_EDGES = [(i, (i + 1) % N, Fraction(1, 4)) for i in range(N)]


def gap(order):
    """Without backup, staleness and skips a reduce takes what it takes in lockstep, whoever is ahead."""
    return Neighbor(rounds=(Round.from_edges(N, RING_EDGES),), when=Gap(max_ig=2, order=order))


PATIENT = Quorum(quorum=QuorumStart.SOLO, grace=60_000_000)
"""Every round waits for a gradient of each worker that has one, so that what it sums is determined."""

DILOCO = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
OUTER = Routes(outer=Outer(**DILOCO))

PHASES = GroupPhases(tuple(Phase.from_groups(N, [group]) for group in ([0, 1], [1, 2], range(N))))
KINDS = {
    "allreduce": Kind(AllReduce(), gradients=True),
    "allreduce, pipeline": Kind(AllReduce(when=Pipeline()), gradients=True, lag=1),
    "allreduce, quorum": Kind(AllReduce(when=PATIENT), gradients=True, quorum=True),
    "allreduce, layers": Kind(AllReduce(how=How(sending=Sending.LAYERS)), gradients=True, early=True),
    "allreduce, pace 2": Kind(AllReduce(pace=2), pace=2),
    "allreduce, late": Kind(AllReduce(when=Late()), late=True),
    "allreduce, outer": Kind(AllReduce(pace=2, what=OUTER), pace=2, outer=DILOCO),
    "allreduce, fragments": Kind(
        AllReduce(pace=4, when=Merge(steps=1, alpha="1/2"), what=Routes(outer=Outer(**DILOCO), fragments=2)),
        pace=4,
        outer=DILOCO,
        turns=2,
    ),
    "static": Kind(Static(phases=PHASES), (FIRST_TWO, LAST_TWO, MEAN)),
    "static, outer": Kind(Static(phases=PHASES, what=OUTER), (FIRST_TWO, LAST_TWO, MEAN), outer=DILOCO),
    "neighbor": Kind(Neighbor(rounds=(Round.from_edges(N, RING_EDGES),)), (RING,)),
    "neighbor, late": Kind(Neighbor(rounds=(Round.from_edges(N, RING_EDGES),), when=Late()), (RING,), late=True),
    "neighbor, gap": Kind(gap(Order.SERIAL), (RING,)),
    "neighbor, gap, parallel": Kind(gap(Order.PARALLEL), (RING,), late=True),
    "generated": Kind(Generated(group_size=N, division=Division.GLOBAL), free="generated"),
    "server": Kind(Server(hosts=(0, 2)), gradients=True),
    "server, asynchronous": Kind(Server(hosts=(0,), synchronous=False), free="server"),
    "pairwise": Kind(Pairwise(active=(1, 2)), free="pairwise"),
}
