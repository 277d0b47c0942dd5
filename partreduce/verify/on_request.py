"""Claims about strategies whose groups are decided while the job runs: what holds whichever worker asks, and when.

Their protocols are explored (docs/internals/explorer.md); here stand the conditions that can be decided from the
schedule file. None of them has an entry in the certificate: the checker has no groups to look at.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import DynamicGroups, Pairwise, Server
from partreduce.topo.strategies.axes import Codec
from partreduce.verify.base import Claim, Status, upper
from partreduce.verify.codec_error import codec_error_of_a_server
from partreduce.verify.runs import ASSUMED


def prove_generated(schedule: Schedule) -> tuple[Claim, ...]:
    """The theorem of the division, if it covers what runs, and the order of groups that excludes circular waiting."""
    assert isinstance(schedule.strategy, DynamicGroups), "the registry of provers names the kind"
    return _convergence(schedule.strategy, schedule.cluster), _numbered_groups()


def prove_pairwise(schedule: Schedule) -> tuple[Claim, ...]:
    """Every edge joins the active and the passive side, and the graph is connected.

    The first excludes circular waiting (Lian et al., ICML 2018, section 3); without the second there is no consensus.
    """
    assert isinstance(schedule.strategy, Pairwise), "the registry of provers names the kind"
    strategy, cluster = schedule.strategy, schedule.cluster
    return _two_sides(strategy, cluster), _connected(strategy, cluster), _questions(strategy, cluster)


def prove_server(schedule: Schedule) -> tuple[Claim, ...]:
    """One copy of the parameters, so there is nothing to agree on; a synchronous server waits for everybody."""
    assert isinstance(schedule.strategy, Server), "the registry of provers names the kind"
    text = "every shard has one copy, on its host, and workers read it at the start of a round."
    claims = (
        Claim("consensus", Status.FOLLOWS, text),
        _served(schedule.strategy),
        _equal_replicas(schedule.strategy),
        codec_error_of_a_server(schedule),
    )
    return tuple(claim for claim in claims if claim is not None)


def _equal_replicas(strategy: Server) -> Claim | None:
    """Where a server is synchronous and not late its answer is the same for all, and all that they go on from."""
    if not strategy.synchronous or strategy.mixes_late:
        return None
    unit = "step" if strategy.averages_gradients else "round"
    text = f"the hosts answer all workers with the same bytes, so all hold the same parameters after every {unit}. "
    if strategy.transport.codec is not Codec.NONE:
        text += "What a host rounds in its answer its own worker takes rounded, too. "
    return Claim("equal-replicas", Status.FOLLOWS, text + ASSUMED)


def _served(strategy: Server) -> Claim:
    """Whom a worker of a server waits for."""
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
    return Claim("deadlock-free", Status.FOLLOWS, text)


def _convergence(strategy: DynamicGroups, cluster: Cluster) -> Claim:
    from partreduce.verify.generated import convergence_conditions

    try:
        found = convergence_conditions(strategy, cluster)
    except ScheduleError as error:
        return Claim("convergence", Status.NOT_PROVED, f"{error}.")
    second = found.second_eigenvalue
    witness = {
        "second_eigenvalue": float(second),
        "trace": str(second.trace),
        "determinant": str(second.determinant),
        "drawn": second.how,
        "independent": found.independent,
        "against": list(found.against),
        "assumes": found.assumes,
    }
    value = f"at most {upper(Fraction(float(second)))}" if found.independent else f"{float(second):.6g}"
    words = f"λ₂ of E[WᵀW] is {value} for {second.how}"
    if not found.independent:
        return Claim("convergence", Status.NOT_PROVED, f"{'; '.join(found.against)}. ({words}.)", witness)
    if not found.contracts:
        return Claim("convergence", Status.REFUTED, f"{words}.", witness)
    return Claim("convergence", Status.FOLLOWS, f"{words}. Assumed: {found.assumes}.", witness)


def _numbered_groups() -> Claim:
    """Groups have one order in all buffers. A theorem about the protocol, so it does not depend on the schedule."""
    text = (
        "groups get sequence numbers, stand in their order in the buffers of all members, and start when they are "
        "first in all of them and no member is in a running one. Running groups are disjoint and their members wait "
        "for no other; once they are done, the oldest group that has not started is first in the buffers of all its "
        "members and starts. A worker that ends is taken out of groups that have not started and meets the one that "
        "runs first, so neither unequal data nor unequal steps per round leave anybody waiting. This is a theorem "
        "about the protocol: that its code follows it was explored for small configurations (docs/group-generator.md). "
        "Assumed: the service lives or is started again, messages arrive when repeated, and who dies is given up by "
        "its lease."
    )
    return Claim("deadlock-free", Status.FOLLOWS, text)


def _edges(strategy: Pairwise, cluster: Cluster) -> list[tuple[int, int]]:
    n = cluster.num_workers
    return [(worker, other) for worker in strategy.active for other in strategy.passive_of(worker, n)]


def _two_sides(strategy: Pairwise, cluster: Cluster) -> Claim:
    count = len(_edges(strategy, cluster))
    sides = f"{len(strategy.active)} active and {cluster.num_workers - len(strategy.active)} passive workers"
    return Claim(
        "deadlock-free",
        Status.FOLLOWS,
        f"all {count} edges join {sides}; only active workers wait for an answer and only passive ones give it, so "
        "nobody who is waited for waits. Assumed at the end: a passive worker that has no more data goes on answering "
        "until all active ones have ended.",
        {"active": sorted(strategy.active)},
    )


def _questions(strategy: Pairwise, cluster: Cluster) -> Claim:
    """How many questions can wait at a passive worker: each active worker has asked one at most."""
    askers = Counter(passive for _, passive in _edges(strategy, cluster))
    most = max(askers.values(), default=0)
    busiest = min((worker for worker in askers if askers[worker] == most), default=None)
    return Claim(
        "queues",
        Status.FOLLOWS,
        f"an active worker asks one question and waits for its answer, and {most} of them at most know a passive "
        f"worker: so at most {most} questions wait there, each is answered, and who asks waits for at most "
        f"{max(most - 1, 0)} exchanges of others. Nobody waits for anybody's rounds, so how far one gets ahead of "
        "another has no bound.",
        {"questions": most, "worker": busiest, "gap": None},
    )


def _connected(strategy: Pairwise, cluster: Cluster) -> Claim:
    import networkx as nx

    n = cluster.num_workers
    graph = nx.Graph(_edges(strategy, cluster))
    graph.add_nodes_from(range(n))
    reached = nx.node_connected_component(graph, 0)
    if len(reached) == n:
        return Claim(
            "consensus",
            Status.FOLLOWS,
            "the graph is connected and every edge is used with positive probability in every round of its active end.",
        )
    outside = next(worker for worker in range(n) if worker not in reached)
    return Claim(
        "consensus",
        Status.REFUTED,
        f"no path of edges leads from worker 0 to worker {outside}; add an edge between their parts.",
        {"closed": sorted(reached), "outside": outside},
    )
