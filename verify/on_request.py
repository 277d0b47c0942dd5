"""Claims about strategies whose groups are decided while the job runs: what holds whoever asks, and when.

Their protocols are explored (`verify.explore`); here stand the conditions that can be decided from the schedule file.
None of them has an entry in the certificate: the checker has no groups to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.topo.strategies import Generated, Pairwise
from preduce.verify.base import Claim, Status, not_proved

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def prove_generated(schedule: Schedule) -> tuple[Claim, ...]:
    """Prague's conditions: λ₂ of E[WᵀW] below 1 and draws that do not depend on the past."""
    assert isinstance(schedule.strategy, Generated), "the registry of provers names the kind"
    return (_convergence(schedule.strategy, schedule.cluster),)


def prove_pairwise(schedule: Schedule) -> tuple[Claim, ...]:
    """Every edge joins the active and the passive side, and the graph is connected.

    The first excludes circular waiting (Lian et al., ICML 2018, section 3); without the second there is no consensus.
    """
    assert isinstance(schedule.strategy, Pairwise), "the registry of provers names the kind"
    return _two_sides(schedule.strategy, schedule.cluster), _connected(schedule.strategy, schedule.cluster)


def prove_server(schedule: Schedule) -> tuple[Claim, ...]:  # noqa: ARG001 - the signature of all provers
    """One copy of the parameters, so there is nothing to agree on; a synchronous server waits for everybody."""
    text = "every shard has one copy, on its host, and workers read it at the start of a round."
    return (Claim("consensus", Status.PROVED, text),)


def _convergence(strategy: Generated, cluster: Cluster) -> Claim:
    from preduce.verify.generated import convergence_conditions

    found = convergence_conditions(strategy, cluster)
    second = found.second_eigenvalue
    witness = {
        "second_eigenvalue": float(second),
        "trace": str(second.trace),
        "determinant": str(second.determinant),
        "drawn": second.how,
        "independent": found.independent,
    }
    words = f"λ₂ of E[WᵀW] is {float(second):.6g} for {second.how}; {found.why}."
    if not found.contracts:
        return Claim("convergence", Status.REFUTED, words, witness)
    if not found.independent:
        return not_proved("convergence", words)
    return Claim("convergence", Status.PROVED, words, witness)


def _edges(strategy: Pairwise, cluster: Cluster) -> list[tuple[int, int]]:
    n = cluster.num_workers
    return [(worker, other) for worker in strategy.active for other in strategy.passive_of(worker, n)]


def _two_sides(strategy: Pairwise, cluster: Cluster) -> Claim:
    count = len(_edges(strategy, cluster))
    sides = f"{len(strategy.active)} active and {cluster.num_workers - len(strategy.active)} passive workers"
    return Claim(
        "deadlock-free",
        Status.PROVED,
        f"all {count} edges join {sides}; only active workers wait for an answer and only passive ones give it, so "
        "nobody who is waited for waits.",
        {"active": sorted(strategy.active)},
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
            Status.PROVED,
            "the graph is connected and every edge is used with positive probability in every round of its active end.",
        )
    outside = next(worker for worker in range(n) if worker not in reached)
    return Claim(
        "consensus",
        Status.REFUTED,
        f"no path of edges leads from worker 0 to worker {outside}; add an edge between their parts.",
        {"closed": sorted(reached), "outside": outside},
    )
