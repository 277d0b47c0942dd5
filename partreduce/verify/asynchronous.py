"""Strategies whose groups are decided while the job runs: what holds whichever worker asks, and when.

Their protocols are explored (docs/internals/explorer.md); here stand the conditions that can be decided from the
schedule file. None of them has an entry in the certificate: the checker has no groups to look at.

Groups drawn at run time have no fixed product to certify. Prague rests on the analysis of AD-PSGD: every W must be
doubly stochastic (group means always are), λ₂ of E[WᵀW] below 1, and W must not depend on the past. Which draws do not?

* `random`: the worker that asks is given, by everybody's speed; its partners are uniformly random among all others. So
  the theorem is for *any* worker that asks, chosen by an adversary who knows the past (`any_requester`).
  Conditioned on the past, E‖Wx‖² ≤ λ·‖x‖² for every x off the mean, and factors multiply: nothing has to be
  independent.
* `node-then-all`: the idle workers of a node average, which nobody can predict. But a meeting of all is drawn after
  `all_every` · n requests since the last one, whatever happened: its mean is the exact mean, so λ₂ is 0 over each cycle
  that ends in a meeting, and there is no statement about less.
* `global`, `inter-intra`: a division is drawn among the workers that are idle when somebody asks. Two parts that are
  never idle together never mix, and no probability of that is known: not proved. λ₂ is told for all of them idle.

Each holds as long as all workers take part, and only while neither the filter of slow workers nor `max_known` decides.
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
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.dynamic_groups import GroupSplit
from partreduce.verify.base import SHOWN, Claim, Status, follows, not_proved, refuted, some, upper
from partreduce.verify.facts import If, ScheduleFacts, Statement, always
from partreduce.verify.payload import CODEC_ERROR_OF_SERVER
from partreduce.verify.rounds import SAME_START


@dataclass(frozen=True, slots=True)
class SecondEigenvalue:
    """λ₂ of E[WᵀW], as the larger root of λ² − trace·λ + determinant: exact, whether it is rational or not.

    For one operation (random, global division) the determinant is 0 and λ₂ = trace; for inter/intra it belongs to the
    inter phase followed by the intra phase, for node-then-all to a cycle. `how` says what it is of.
    """

    trace: Fraction
    determinant: Fraction
    how: str

    @property
    def is_below_one(self) -> bool:
        """Whether both roots are below 1: the polynomial is positive at 1 and 1 lies right of its vertex."""
        return 1 - self.trace + self.determinant > 0 and self.trace < 2

    def __float__(self) -> float:
        return (float(self.trace) + math.sqrt(self.trace * self.trace - 4 * self.determinant)) / 2


ALL_TAKE_PART = "all workers take part (none dies, pauses or has ended)"
UNPREDICTED = (
    "the random numbers, SHAKE-256 of seed and draw, are as good as uniform, and no speed depends on those to come"
)


class Theorem(NamedTuple):
    """λ₂ and what it is of, the reasons why what runs is not covered, and what else the theorem rests on."""

    second_eigenvalue: SecondEigenvalue
    against: tuple[str, ...] = ()
    assumes: str = ALL_TAKE_PART

    @property
    def holds(self) -> bool:
        """Whether the theorem covers what runs, and says that it contracts."""
        return self.second_eigenvalue.is_below_one and not self.against


def theorem_of(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    """The theorem of the division, and what stands against it in this schedule. O(number of nodes).

    Raises:
        ScheduleError: inter/intra groups on a cluster whose nodes differ in size.
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
    """The distinct groups into which one worker can be drawn while all take part; counting ends beyond `MANY`.

    `random`: any `group_size` − 1 partners. `node-then-all`: any part of its node, and all workers. Divisions form
    groups of any idle workers, for which nothing is proved anyway.
    """
    n, g = cluster.num_workers, strategy.group_size
    if strategy.division == GroupSplit.NODE_THEN_ALL:
        largest = max(len(cluster.workers_of(node)) for node in range(cluster.num_nodes))
        return int(2 ** min(largest - 1, 64) - 1 + (cluster.num_nodes > 1))
    if strategy.division != GroupSplit.RANDOM:
        return MANY + 1
    count = 1
    for taken in range(min(g - 1, n - g)):
        count = count * (n - 1 - taken) // (taken + 1)
        if count > MANY:
            break
    return count


def _random(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    n, g = cluster.num_workers, strategy.group_size
    how = f"a group of {g} among {n}, random but for the worker that asks, whoever asks"
    second = SecondEigenvalue(any_requester(n, g), Fraction(0), how)
    return Theorem(second, assumes=f"{ALL_TAKE_PART}; {UNPREDICTED}")


def _node_then_all(strategy: DynamicGroups, cluster: Cluster) -> Theorem:
    n, every = cluster.num_workers, strategy.all_every
    how = (
        f"a cycle that ends in the group of all {n} workers, which is drawn after {every * n} requests ({every} rounds "
        "of each worker, on average) since the last; nothing is said about fewer rounds"
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
    "a division is drawn among the workers that are idle when somebody asks, which depends on everybody's speed: parts "
    "that are never idle together do not mix, and no probability of that is known"
)

THEOREMS: dict[GroupSplit, Callable[[DynamicGroups, Cluster], Theorem]] = {
    GroupSplit.RANDOM: _random,
    GroupSplit.GLOBAL: _global,
    GroupSplit.INTER_INTRA: _inter_intra,
    GroupSplit.NODE_THEN_ALL: _node_then_all,
}
"""One for each division; a new one has none until it is written here."""


def any_requester(num_workers: int, size: int) -> Fraction:
    """λ with E‖Wx‖² ≤ λ‖x‖² off the mean for a group of a *given* worker i and `size` − 1 uniformly random others.

    ‖x‖² − ‖Wx‖² is 1/g times the sum of (x_j − x_k)² over the pairs in the group. A pair with i is in it with
    probability a = (g−1)/(n−1), another with b = a·(g−2)/(n−2). Off the mean the pairs sum to n‖x‖², those with i to
    n·x_i² + ‖x‖². So the expectation is (b·n + a − b)‖x‖²/g and more, the least where x_i = 0, which n ≥ 3 allows.
    """
    n, g = num_workers, size
    if n == 2:
        return Fraction(0)
    a = Fraction(g - 1, n - 1)
    b = a * Fraction(g - 2, n - 2)
    return 1 - (b * (n - 1) + a) / g


def partition(num_workers: int, size: int) -> Fraction:
    """λ₂ of E[WᵀW] for a uniformly random partition into groups of `size`; the rest forms one smaller group."""
    if num_workers == 1:
        return Fraction(0)
    return Fraction(-(-num_workers // size) - 1, num_workers - 1)


def inter_intra(num_nodes: int, workers_per_node: int, size: int) -> SecondEigenvalue:
    """λ₂ of E[WᵀW] for an inter phase and then an intra phase, exactly.

    Inter: the nodes' heads in a random partition, all others in random groups inside their node. Intra: all of a node.
    Off the mean only what differs between nodes survives the intra phase. There x is a value of the head and a value
    √(p−1)·o of the others, and with ρ = λ₂ of the heads' partition E[WᵀW] is (1/p)·[[ρ, ρ√(p−1)], [ρ√(p−1), p−1]]: the
    others' groups keep their node's sum, and E[H] = E[HᵀH] because H is a projection.
    """
    rho, p = partition(num_nodes, size), workers_per_node
    trace = (rho + p - 1) / p if num_nodes > 1 else Fraction(0)
    determinant = rho * (1 - rho) * (p - 1) / p**2 if num_nodes > 1 else Fraction(0)
    return SecondEigenvalue(
        trace, determinant, f"heads of {num_nodes} nodes in groups of {size}, then all {p} of a node"
    )


def _prove_convergence(facts: ScheduleFacts) -> Claim:
    """The theorem of the division, if it covers what runs."""
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
    Statement(
        "deadlock-free",
        lambda _: follows(
            "deadlock-free",
            "groups get sequence numbers, stand in their order in the buffers of all members, and start when they are "
            "first in all of them and no member is in a running one. Running groups are disjoint and their members "
            "wait for no other; once they are done, the oldest group that has not started is first in the buffers of "
            "all its members and starts. A worker that ends is taken out of groups that have not started and meets the "
            "one that runs first, so neither unequal data nor unequal steps per round leave anybody waiting. This is a "
            "theorem about the protocol: that its code follows it was explored for small configurations "
            "(docs/group-generator.md). Assumed: the service lives or is started again, messages arrive when repeated, "
            "and who dies is given up by its lease.",
        ),
        essential=always,
    ),
)


def _pairwise(schedule: Schedule) -> Pairwise:
    assert isinstance(schedule.strategy, Pairwise), "the table of its kind"
    return schedule.strategy


def _edges(schedule: Schedule) -> list[tuple[int, int]]:
    strategy, n = _pairwise(schedule), schedule.num_workers
    return [(worker, other) for worker in strategy.active for other in strategy.passive_of(worker, n)]


def _prove_two_sides(facts: ScheduleFacts) -> Claim:
    """Every edge joins the two sides, which excludes circular waiting (Lian et al., ICML 2018, section 3)."""
    active, n = _pairwise(facts.schedule).active, facts.schedule.num_workers
    return follows(
        "deadlock-free",
        f"all {len(_edges(facts.schedule))} edges join {len(active)} active and {n - len(active)} passive workers; "
        "only active workers wait for an answer and only passive ones give it, so nobody who is waited for waits. "
        "Assumed at the end: a passive worker that has no more data goes on answering until all active ones have "
        "ended.",
        {"active": sorted(active)},
    )


def _prove_questions(facts: ScheduleFacts) -> Claim:
    """How many questions can wait at a passive worker: each active worker has asked one at most."""
    askers = Counter(passive for _, passive in _edges(facts.schedule))
    most = max(askers.values(), default=0)
    busiest = min((worker for worker in askers if askers[worker] == most), default=None)
    return follows(
        "queues",
        f"an active worker asks one question and waits for its answer, and {most} of them at most know a passive "
        f"worker: so at most {most} questions wait there, each is answered, and who asks waits for at most "
        f"{max(most - 1, 0)} exchanges of others. Nobody waits for anybody's rounds, so how far one gets ahead of "
        "another has no bound.",
        {"questions": most, "worker": busiest, "gap": None},
    )


def _prove_connected(facts: ScheduleFacts) -> Claim:
    """The graph is connected; without that there is no consensus."""
    import networkx as nx

    n = facts.schedule.num_workers
    graph = nx.Graph(_edges(facts.schedule))
    graph.add_nodes_from(range(n))
    reached = nx.node_connected_component(graph, 0)
    if len(reached) == n:
        return follows(
            "consensus",
            "the graph is connected and every edge is used with positive probability in every round of its active end.",
        )
    outside = [worker for worker in range(n) if worker not in reached]
    return refuted(
        "consensus",
        f"no path of edges leads from worker 0 to worker {outside[0]}; add an edge between their parts.",
        {"closed": sorted(reached), "outside": outside[0]},
        f"workers {some(sorted(reached), SHOWN)} never average with {some(outside, SHOWN)}",
    )


PAIRWISE = (
    Statement("deadlock-free", _prove_two_sides, essential=always),
    Statement("consensus", _prove_connected, essential=always),
    Statement("queues", _prove_questions),
)


def _prove_served(facts: ScheduleFacts) -> Claim:
    """Whom a worker of a server waits for."""
    strategy = facts.schedule.strategy
    assert isinstance(strategy, Server), "the table of its kind"
    if strategy.synchronous:
        text = (
            "shards answer beside the training of their host, and round r is complete once all workers have pushed in "
            "it, which each does after its round r − 1; so the smallest unfinished round is always completed. Assumed: "
            "all workers carry out the same number of rounds (join mode does that with unequal data)."
        )
    elif strategy.staleness is None:
        text = "shards answer beside the training of their host, and wait for nobody; so a worker waits for no other."
    else:
        text = (
            "shards answer beside the training of their host; only a worker that is more than "
            f"{strategy.staleness} rounds ahead of the slowest waits, and the slowest never is. Assumed: all workers "
            "carry out the same number of rounds; the others wait for one that ends much earlier."
        )
    return follows("deadlock-free", text)


def _prove_equal_replicas(facts: ScheduleFacts) -> Claim | None:
    """Where a server is synchronous and not late its answer is the same for all, and all that they go on from."""
    strategy = facts.schedule.strategy
    assert isinstance(strategy, Server), "the table of its kind"
    if not strategy.synchronous or strategy.mixes_late:
        return None
    unit = "step" if strategy.averages_gradients else "round"
    text = f"the hosts answer all workers with the same bytes, so all hold the same parameters after every {unit}."
    return follows("equal-replicas", text)


SERVER = (
    Statement(
        "consensus",
        lambda _: follows(
            "consensus", "every shard has one copy, on its host, and workers read it at the start of a round."
        ),
        essential=always,
    ),
    Statement("deadlock-free", _prove_served, essential=always),
    Statement(
        "equal-replicas",
        _prove_equal_replicas,
        (
            If(
                lambda s, _: s.strategy.transport.codec is not Codec.NONE,
                " What a host rounds in its answer its own worker takes rounded, too.",
            ),
            SAME_START,
        ),
    ),
    CODEC_ERROR_OF_SERVER,
)
"""One copy of the parameters, so there is nothing to agree on; a synchronous server waits for everybody."""
