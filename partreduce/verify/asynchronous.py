"""Prove claims about strategies whose groups are chosen at run time, for any requesting worker and any timing.

The protocols themselves are model-checked (docs/internals/explorer.md); this module checks the conditions that the
schedule file alone decides. These claims have no entry in the certificate: the file lists no groups to check.

Groups drawn at run time have no fixed product of mixing matrices to certify. Prague relies on the analysis of AD-PSGD
(asynchronous decentralized SGD): every mixing matrix W must be doubly stochastic (group means always are), the second
largest eigenvalue λ₂ of E[WᵀW] must be below 1, and W must not depend on the past. For each way to divide workers into
groups (`division`) the result is:

* `random`: the workers' speeds determine the requesting worker; its partners are uniformly random among all others. So
  the theorem is for *any* requesting worker, chosen by an adversary who knows the past (`any_requester`). Conditioned
  on the past, E‖Wx‖² ≤ λ·‖x‖² for every x off the mean, and factors multiply: no independence is needed.
* `node-then-all`: the idle workers of a node average; which ones are idle is unpredictable. But a group of all workers
  follows in any case, `all_every` · n requests after the previous one. Its mean is the exact mean, so λ₂ is 0 over each
  cycle that ends in such a group. Nothing is stated about shorter intervals.
* `global`, `inter-intra`: groups are drawn among the workers that are idle at a request. Two sets of workers that are
  never idle together never mix, and the probability of this is unknown, so convergence is not proved. λ₂ is reported
  for the case that all workers are idle.

All of this assumes that every worker takes part, and that neither the filter of slow workers (`slow_threshold`) nor the
limit on known groups (`max_known`) takes effect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import DynamicGroups, Pairwise, Server
from partreduce.topo.strategies.dynamic_groups import GroupSplit
from partreduce.verify.base import SHOWN, Claim, Status, follows, not_proved, refuted, some, upper
from partreduce.verify.facts import If, Numbers, ScheduleFacts, Statement, always, of_protocol
from partreduce.verify.payload import CODEC_ERROR_OF_SERVER
from partreduce.verify.rounds import SAME_START, has_codec


@dataclass(frozen=True, slots=True)
class SecondEigenvalue:
    """The second largest eigenvalue λ₂ of E[WᵀW], stored exactly as the larger root of λ² − trace·λ + determinant.

    W depends on the strategy's `division`: one group for `random`, one partition of the workers for `global` (both with
    determinant 0, so λ₂ = trace), an inter phase and an intra phase for `inter-intra`, and for `node-then-all` all
    averages up to the next one of all workers. `how` describes W in words.
    """

    trace: Fraction
    determinant: Fraction
    how: str

    @property
    def is_below_one(self) -> bool:
        """Return whether λ₂ < 1: the polynomial is positive at 1, and 1 lies to the right of its vertex."""
        return 1 - self.trace + self.determinant > 0 and self.trace < 2

    def __float__(self) -> float:
        return (float(self.trace) + math.sqrt(self.trace * self.trace - 4 * self.determinant)) / 2


ALL_TAKE_PART = "all workers take part (none fails, pauses or has ended)"
UNPREDICTED = (
    "the random numbers, SHAKE-256 of seed and draw, are as good as uniform, and no speed depends on later numbers"
)


class Theorem(NamedTuple):
    """AD-PSGD's convergence theorem applied to a schedule: λ₂, reasons `against` its use here, its assumptions."""

    second_eigenvalue: SecondEigenvalue
    against: tuple[str, ...] = ()
    assumes: str = ALL_TAKE_PART

    @property
    def holds(self) -> bool:
        """Return whether the theorem covers the schedule and implies contraction."""
        return self.second_eigenvalue.is_below_one and not self.against


def theorem_of(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    """Return AD-PSGD's convergence theorem for a strategy, with the conditions that the strategy violates.

    Raises:
        ScheduleError: the division is `inter-intra`, and the cluster's nodes differ in size.
    """
    theorem = THEOREMS[strategy.division](strategy, cluster)
    reasons = list(theorem.against)
    if strategy.slow_threshold is not None:
        reasons.append(
            f"slow_threshold {strategy.slow_threshold} leaves workers out by their progress: draws depend on the past"
        )
    possible = groups_of_a_worker(strategy, cluster)
    if strategy.max_known is not None and possible >= strategy.max_known:
        shown = str(possible) if possible <= MANY else f"over {MANY}"
        reasons.append(
            f"max_known {strategy.max_known} restricts a worker to groups drawn before, once it belongs to that many "
            f"({shown} are possible): draws depend on the past, and parts may form that never meet"
        )
    return theorem._replace(against=tuple(reasons))


MANY = 10**6


def groups_of_a_worker(strategy: DynamicGroups, cluster: Cluster) -> int:
    """Return how many distinct groups may contain a given worker if all workers take part; exact up to `MANY`.

    `random`: any `group_size` − 1 partners. `node-then-all`: any subset of its node, and all workers. `global` and
    `inter-intra`, for which nothing is proved: `MANY` + 1.
    """
    n, g = cluster.num_workers, strategy.group_size
    if strategy.division == GroupSplit.NODE_THEN_ALL:
        return int(2 ** min(int(cluster.node_sizes().max()) - 1, 64) - 1 + (cluster.num_nodes > 1))
    if strategy.division != GroupSplit.RANDOM:
        return MANY + 1
    return math.comb(n - 1, min(g - 1, n - g, 20))  # 20 of 40 or more are over MANY


def _random(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    n, g = cluster.num_workers, strategy.group_size
    how = f"a group of {g} among {n}, random except for the requesting worker, which may be any"
    second = SecondEigenvalue(any_requester(n, g), Fraction(0), how)
    return Theorem(second, assumes=f"{ALL_TAKE_PART}; {UNPREDICTED}")


def _node_then_all(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    n, every = cluster.num_workers, strategy.all_every
    how = (
        f"a cycle that ends in the group of all {n} workers, which is drawn after {every * n} requests ({every} rounds "
        "of each worker, on average) since the last; no bound holds over fewer rounds"
    )
    return Theorem(SecondEigenvalue(Fraction(0), Fraction(0), how))


def _global(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    n, g = cluster.num_workers, strategy.group_size
    how = f"a uniformly random partition of {n} in groups of {g}, if all were idle at it"
    return Theorem(SecondEigenvalue(partition(n, g), Fraction(0), how), (AMONG_IDLE,))


def _inter_intra(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    if cluster.workers_per_node is None:
        raise ScheduleError(f"cluster {cluster}: inter/intra groups are analyzed for nodes of equal size")
    return Theorem(inter_intra(cluster.num_nodes, cluster.workers_per_node, strategy.group_size), (AMONG_IDLE,))


AMONG_IDLE = (
    "a division is drawn among the workers that are idle at a request, which depends on the speed of all workers: "
    "parts that are never idle together do not mix, and the probability of that is unknown"
)

THEOREMS: dict[GroupSplit, Callable[[DynamicGroups, Cluster], Theorem]] = {
    GroupSplit.RANDOM: _random,
    GroupSplit.GLOBAL: _global,
    GroupSplit.INTER_INTRA: _inter_intra,
    GroupSplit.NODE_THEN_ALL: _node_then_all,
}
"""The theorem for each way to divide workers into groups; a new division has no theorem until it is listed here."""


def any_requester(num_workers: int, size: int) -> Fraction:
    """Return the contraction factor λ of a group of a *given* worker i and `size` − 1 random partners.

    λ is the least number with E‖Wx‖² ≤ λ‖x‖² for all x of mean 0; partners are uniformly random. Let g = `size`, n =
    `num_workers`: ‖x‖² − ‖Wx‖² is 1/g times the sum of (x_j − x_k)² over the pairs of the group. A pair with i is in it
    with probability a = (g−1)/(n−1), another pair with b = a·(g−2)/(n−2). For x of mean 0 the squares sum up to
    n‖x‖² over all pairs, and to n·x_i² + ‖x‖² over the pairs with i. So the expected decrease is at least
    (b·n + a − b)‖x‖²/g, with equality at x_i = 0, which n ≥ 3 allows.
    """
    n, g = num_workers, size
    if n == 2:
        return Fraction(0)
    a = Fraction(g - 1, n - 1)
    b = a * Fraction(g - 2, n - 2)
    return 1 - (b * (n - 1) + a) / g


def partition(num_workers: int, size: int) -> Fraction:
    """Return λ₂ of E[WᵀW] for a uniformly random partition into groups of `size`, the last of which may be smaller."""
    if num_workers == 1:
        return Fraction(0)
    return Fraction(-(-num_workers // size) - 1, num_workers - 1)


def inter_intra(num_nodes: int, workers_per_node: int, size: int) -> SecondEigenvalue:
    """Return λ₂ of E[WᵀW], exactly, where W is an inter phase followed by an intra phase.

    Inter phase: one worker of each node (its head) averages in a random partition of the heads into groups of `size`,
    all others in random groups inside their node. Intra phase: all workers of a node average, so only differences
    between nodes remain. For these, x has two coordinates on a node of p workers: the head's value, and √(p−1)·o where
    o is the value of all others. With ρ = λ₂ of the heads' partition H, E[WᵀW] is (1/p)·[[ρ, ρ√(p−1)], [ρ√(p−1), p−1]]:
    the others' groups keep their node's sum, and E[H] = E[HᵀH] because H is a projection.
    """
    rho, p = partition(num_nodes, size), workers_per_node
    trace = (rho + p - 1) / p if num_nodes > 1 else Fraction(0)
    determinant = rho * (1 - rho) * (p - 1) / p**2 if num_nodes > 1 else Fraction(0)
    return SecondEigenvalue(
        trace, determinant, f"heads of {num_nodes} nodes in groups of {size}, then all {p} of a node"
    )


def _prove_convergence(facts: ScheduleFacts) -> Claim:
    """Prove `convergence` by AD-PSGD's theorem, or state why the theorem does not cover the schedule."""
    strategy = facts.schedule.strategy
    assert isinstance(strategy, DynamicGroups), "the table of its kind"
    try:
        found = theorem_of(strategy, facts.schedule.cluster)
    except ScheduleError as error:
        return not_proved("convergence", f"{error}.")
    second = found.second_eigenvalue
    witness = {
        "second_eigenvalue": float(second),
        "trace": str(second.trace),
        "determinant": str(second.determinant),
        "drawn": second.how,
        "independent": not found.against,
        "against": list(found.against),
        "assumes": found.assumes,
    }
    value = f"at most {upper(Fraction(float(second)))}" if not found.against else f"{float(second):.6g}"
    words = f"λ₂ of E[WᵀW] is {value} for {second.how}"
    if found.against:
        return Claim("convergence", Status.NOT_PROVED, f"{'; '.join(found.against)}. ({words}.)", witness)
    if not found.holds:
        return refuted("convergence", f"{words}.", witness)
    return follows("convergence", f"{words}. Assumed: {found.assumes}.", witness)


DYNAMIC_GROUPS = (
    Statement("convergence", _prove_convergence, essential=always),
    of_protocol(
        "deadlock-free",
        "Groups get sequence numbers and stand in that order in the buffers of all their members. A group starts when "
        "it is first in all of them and no member is in a running group. Running groups are disjoint and their members "
        "wait for no other group. Once they are done, the oldest group that has not started is first in the buffers of "
        "all its members and starts. A worker that ends leaves groups that have not started and first finishes the "
        "running one, so neither unequal data nor unequal steps per round leave a worker waiting. This is a theorem "
        "about the protocol: that its code follows it was explored for small configurations "
        "(docs/strategies/groups.md). Assumed: the service runs or is restarted, repeated messages arrive, and a "
        "failed worker is dropped when its lease ends.",
        essential=always,
    ),
)


def _pairwise(schedule: Schedule) -> Pairwise:
    assert isinstance(schedule.strategy, Pairwise), "the table of its kind"
    return schedule.strategy


def _of_pairs(schedule: Schedule, _: Numbers) -> Numbers:
    """Return the numbers of requests: without `edges` the graph is complete bipartite, and listing it is quadratic."""
    strategy, n = _pairwise(schedule), schedule.num_workers
    active = set(strategy.active)
    if strategy.edges is None:
        requests = Counter(dict.fromkeys(set(range(n)) - active, len(active)))  # by passive worker
    else:
        requests = Counter(b if a in active else a for a, b in strategy.edges)
    most = max(requests.values())
    return {
        "active": sorted(active),
        "counts": f"{sum(requests.values())} edges join {len(active)} active and {n - len(active)} passive",
        "most": most,
        "others": most - 1,
        "busiest": min(worker for worker in requests if requests[worker] == most),
    }


def _prove_connected(facts: ScheduleFacts) -> Claim:
    n, edges = facts.schedule.num_workers, _pairwise(facts.schedule).edges
    outside: list[int] = []
    if edges is not None:
        import networkx as nx

        graph = nx.Graph(edges)
        graph.add_nodes_from(range(n))
        reached = sorted(nx.node_connected_component(graph, 0))
        outside = sorted(set(range(n)) - set(reached))
    if not outside:
        return follows(
            "consensus",
            "The graph is connected, and every edge is used with positive probability in every round of its active "
            "end.",
        )
    return refuted(
        "consensus",
        f"No path leads from worker 0 to worker {outside[0]}; add an edge between their components.",
        {"closed": reached, "outside": outside[0]},
        f"workers {some(reached, SHOWN)} never average with {some(outside, SHOWN)}",
    )


PAIRWISE = (
    of_protocol(  # every edge joins the two sides: Lian et al., ICML 2018, section 3
        "deadlock-free",
        "all {counts} workers. Only active workers wait for an answer and only passive ones give it, so no worker that "
        "others wait for waits itself. Assumed: a passive worker whose data ended answers until all active ones have "
        "ended.",
        _of_pairs,
        witness=lambda n: {"active": n["active"]},
        essential=always,
    ),
    Statement("consensus", _prove_connected, essential=always),
    of_protocol(
        "queues",
        "An active worker sends one request and waits for its answer, and a passive worker has at most {most} active "
        "neighbors. So at most {most} requests wait there, each is answered, and a request waits for at most {others} "
        "exchanges of others. No worker waits for another's rounds, so the distance between two workers has no bound.",
        _of_pairs,
        witness=lambda n: {"questions": n["most"], "worker": n["busiest"], "gap": None},
    ),
)


def _server(schedule: Schedule) -> Server:
    assert isinstance(schedule.strategy, Server), "the table of its kind"
    return schedule.strategy


SERVER = (
    of_protocol(
        "consensus",
        "Every shard has one copy, on its host, and workers read it at the start of a round.",
        essential=always,
    ),
    of_protocol(
        "deadlock-free",
        If(
            lambda s, _: _server(s).synchronous,
            "Shards answer while their host trains, and round r is complete once all workers have pushed in it, which "
            "each does after its round r − 1. So the smallest unfinished round always completes. Assumed: all workers "
            "carry out the same number of rounds (join mode does that with unequal data).",
            If(
                lambda s, _: _server(s).staleness is None,
                "Shards answer while their host trains, and wait for no worker; so no worker waits for another.",
                "Shards answer while their host trains. Only a worker more than {schedule.strategy.staleness} rounds "
                "ahead of the slowest waits, so the slowest never waits. Assumed: all workers carry out the same "
                "number of rounds; the others wait for a worker that ends much earlier.",
            ),
        ),
        essential=always,
    ),
    of_protocol(
        "equal-replicas",
        (
            "The hosts send all workers the same bytes, so all hold the same parameters after every {unit}.",
            If(has_codec, " The worker on a host uses the rounded answer too."),
            SAME_START,
        ),
        lambda s, _: {"unit": "step" if s.strategy.averages_gradients else "round"},
        where=lambda s, _: _server(s).synchronous and not s.strategy.mixes_late,
    ),
    CODEC_ERROR_OF_SERVER,
)
"""Statements for parameter servers, which hold the only copy of the parameters, so workers cannot disagree."""
