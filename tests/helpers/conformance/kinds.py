"""The kinds of strategy in the conformance suite, for n workers, with what the reference reads from them."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from helpers.training import group_phases
from partreduce import Cluster, Schedule
from partreduce import strategies as st

N = 3
"""The workers of the suite, except on a device and for sharded models."""
THREE = Cluster.regular(1, N)


@dataclass(frozen=True)
class Kind:
    """A schedule of the suite; its properties are computed from the fields of its strategy."""

    strategy: object
    cluster: Cluster = THREE
    options: dict = field(default_factory=dict, hash=False)
    """Additional arguments of DistributedOptimizer."""

    @property
    def schedule(self):
        return Schedule("conformance", self.cluster, self.strategy)

    @property
    def workers(self):
        return self.cluster.num_workers

    def steps_of(self, rank):
        steps = self.strategy.steps_per_round
        return steps if isinstance(steps, int) else steps[rank]

    @property
    def gradients(self):
        return self.strategy.averages_gradients

    @property
    def late(self):
        """Whether a round averages the models that workers had at its beginning."""
        sync = self.strategy.sync
        return isinstance(sync, st.DelayedAveraging) or (
            isinstance(sync, st.IterationGap) and sync.update_order is st.UpdateOrder.DPSGD
        )

    @property
    def lag(self):
        """By how many steps gradients are late."""
        return self.strategy.sync.width - 1 if isinstance(self.strategy.sync, st.Pipeline) else 0

    @property
    def quorum(self):
        """Whether one step may apply several means."""
        return isinstance(self.strategy.sync, st.PartialAllReduce)

    @property
    def early(self):
        """Whether gradients are sent during the backward pass."""
        return self.strategy.transport.gradient_buckets is st.GradientBuckets.PER_LAYER

    @property
    def merges(self):
        """Whether an average is applied some steps later, or with a part of the worker's own model."""
        return isinstance(self.strategy.sync, st.DelayedMerge)

    @property
    def outer(self):
        """The arguments of torch's SGD as the outer optimizer; None for plain averages."""
        outer = self.strategy.payload.outer
        if outer.lr == 1 and not outer.momentum:
            return None
        return {"lr": float(outer.lr), "momentum": float(outer.momentum), "nesterov": outer.nesterov}

    @property
    def free(self):
        """The strategy's kind if partners are decided at run time or workers have no common rounds; else ""."""
        kind = self.strategy.kind
        is_free = kind in ("dynamic_groups", "pairwise") or (kind == "server" and not self.strategy.synchronous)
        return kind if is_free else ""

    @property
    def in_turn(self):
        """Whether no worker waits for another, so that workers can take steps in turn and results are exact."""
        return self.free in ("server", "pairwise")


DILOCO = st.OuterStep(lr=0.7, momentum=0.9, nesterov=True)
OUTER = st.Payload(outer=DILOCO)
PATIENT = st.PartialAllReduce(quorum=st.QuorumStart.SOLO, grace=60_000_000)
"""A quorum in which each round waits for a gradient of every worker, so that its sum is determined."""


def phases(n):
    """Return pairs, the pairs between them, and all; workers skip if their number is odd, and of two both do."""
    between = [(i, (i + 1) % n) for i in range(1, n, 2)] if n > 2 else []
    return group_phases(n, [(i, i + 1) for i in range(0, n - 1, 2)], between, [range(n)])


def kinds(n, *, nodes=1):
    """Return the kinds for n workers, by name."""
    ring = (st.Round.from_edges(n, [(i, (i + 1) % n, Fraction(1, 4)) for i in range(n)]),)

    def gap(order):
        """Return a strategy with an iteration gap in which each reduce uses the updates of a synchronous schedule."""
        return st.NeighborAveraging(rounds=ring, sync=st.IterationGap(max_ig=2, update_order=order))

    strategies = {
        "allreduce": st.AllReduce(),
        "allreduce, pipeline": st.AllReduce(sync=st.Pipeline()),
        "allreduce, quorum": st.AllReduce(sync=PATIENT),
        "allreduce, layers": st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)),
        "allreduce, every 2": st.AllReduce(steps_per_round=2),
        "allreduce, late": st.AllReduce(sync=st.DelayedAveraging()),
        "allreduce, outer": st.AllReduce(steps_per_round=2, payload=OUTER),
        "allreduce, fragments": st.AllReduce(
            steps_per_round=4, sync=st.DelayedMerge(steps=1, alpha="1/2"), payload=replace(OUTER, fragments=2)
        ),
        "static": st.StaticGroups(phases=phases(n)),
        "static, outer": st.StaticGroups(phases=phases(n), payload=OUTER),
        "neighbor": st.NeighborAveraging(rounds=ring),
        "neighbor, late": st.NeighborAveraging(rounds=ring, sync=st.DelayedAveraging()),
        "neighbor, gap": gap(st.UpdateOrder.ADAPT_THEN_COMBINE),
        "neighbor, gap, parallel": gap(st.UpdateOrder.DPSGD),
        "dynamic_groups": st.DynamicGroups(group_size=n, division=st.GroupSplit.GLOBAL),
        "server": st.Server(hosts=(0, n - 1)),
        "server, asynchronous": st.Server(hosts=(0,), synchronous=False),
        "pairwise": st.Pairwise(active=tuple(sorted({1, n - 1}))),
    }
    return {name: Kind(strategy, Cluster.regular(nodes, n // nodes)) for name, strategy in strategies.items()}


KINDS = kinds(N)
