"""The strategy kinds of the conformance suite, each with three workers and what a reference needs to know of it."""

from dataclasses import dataclass
from fractions import Fraction

from partreduce import Cluster, Schedule
from partreduce import strategies as st

N = 3
MEAN = [[1 / 3] * 3] * 3


@dataclass(frozen=True)
class Kind:
    """A schedule, and the same by hand: mixing matrices by round, none where workers run freely."""

    strategy: object
    matrices: tuple = (MEAN,)
    steps_per_round: int = 1
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
    """Without backup, staleness and skips a reduce takes the updates of a synchronous schedule."""
    return st.NeighborAveraging(
        rounds=(st.Round.from_edges(N, RING_EDGES),), sync=st.IterationGap(max_ig=2, update_order=order)
    )


PATIENT = st.PartialAllReduce(quorum=st.QuorumStart.SOLO, grace=60_000_000)
"""Every round waits for a gradient of each worker that has one, so that what it sums is determined."""

DILOCO = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
OUTER = st.Payload(outer=st.OuterStep(**DILOCO))

PHASES = st.GroupPhases(tuple(st.Phase.from_groups(N, [group]) for group in ([0, 1], [1, 2], range(N))))
KINDS = {
    "allreduce": Kind(st.AllReduce(), gradients=True),
    "allreduce, pipeline": Kind(st.AllReduce(sync=st.Pipeline()), gradients=True, lag=1),
    "allreduce, quorum": Kind(st.AllReduce(sync=PATIENT), gradients=True, quorum=True),
    "allreduce, layers": Kind(
        st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)), gradients=True, early=True
    ),
    "allreduce, every 2": Kind(st.AllReduce(steps_per_round=2), steps_per_round=2),
    "allreduce, late": Kind(st.AllReduce(sync=st.DelayedAveraging()), late=True),
    "allreduce, outer": Kind(st.AllReduce(steps_per_round=2, payload=OUTER), steps_per_round=2, outer=DILOCO),
    "allreduce, fragments": Kind(
        st.AllReduce(
            steps_per_round=4,
            sync=st.DelayedMerge(steps=1, alpha="1/2"),
            payload=st.Payload(outer=st.OuterStep(**DILOCO), fragments=2),
        ),
        steps_per_round=4,
        outer=DILOCO,
        turns=2,
    ),
    "static": Kind(st.StaticGroups(phases=PHASES), (FIRST_TWO, LAST_TWO, MEAN)),
    "static, outer": Kind(st.StaticGroups(phases=PHASES, payload=OUTER), (FIRST_TWO, LAST_TWO, MEAN), outer=DILOCO),
    "neighbor": Kind(st.NeighborAveraging(rounds=(st.Round.from_edges(N, RING_EDGES),)), (RING,)),
    "neighbor, late": Kind(
        st.NeighborAveraging(rounds=(st.Round.from_edges(N, RING_EDGES),), sync=st.DelayedAveraging()),
        (RING,),
        late=True,
    ),
    "neighbor, gap": Kind(gap(st.UpdateOrder.ADAPT_THEN_COMBINE), (RING,)),
    "neighbor, gap, parallel": Kind(gap(st.UpdateOrder.DPSGD), (RING,), late=True),
    "dynamic_groups": Kind(st.DynamicGroups(group_size=N, division=st.GroupSplit.GLOBAL), free="dynamic_groups"),
    "server": Kind(st.Server(hosts=(0, 2)), gradients=True),
    "server, asynchronous": Kind(st.Server(hosts=(0,), synchronous=False), free="server"),
    "pairwise": Kind(st.Pairwise(active=(1, 2)), free="pairwise"),
}
