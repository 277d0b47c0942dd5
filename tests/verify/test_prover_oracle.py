"""Every claim about small random schedules, against exact dense arithmetic that shares no code with the prover.

The schedules include relaxations from −1/2 to 5/2, overlapping groups, rules, and graphs with and without self-weights.
"""

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import pairwise, product
from random import Random

import networkx as nx
import numpy as np
import pytest

from benchmarks.forgery.schedules import explicit
from helpers.claims import confirm_claims
from helpers.exact_matrices import exact_round
from helpers.refusals import check_error
from helpers.small import of_edges
from helpers.small_draws import random_graph, random_groups, random_rule
from partreduce import Cluster, Schedule
from partreduce.errors import RefutedError, ScheduleError
from partreduce.strategies import Group
from partreduce.topo.strategies import Server
from partreduce.types import Claim, Proof
from partreduce.verify import Status
from partreduce.verify.base import not_proved, proved, refuted, some
from partreduce.verify.contraction import _by_labels
from partreduce.verify.facts import Statement, always
from partreduce.verify.prove import STATEMENTS, prove


def matrices_of(schedule):
    return [exact_round(schedule, t) for t in range(schedule.period)]


def product_of(matrices):
    return reduce(lambda product, matrix: matrix @ product, matrices)


def parts_of(groups, n):
    """Return the connected components of workers, by smallest member."""
    joined = nx.empty_graph(n)
    for members in groups:
        nx.add_path(joined, members)
    return sorted(nx.connected_components(joined), key=min)


def confirm(schedule, proof):
    """Check that the checker confirms the proved claims in order."""
    holds = [claim.claim for claim in proof.claims if claim.status is Status.PROVED]
    assert confirm_claims(schedule, proof.certificate) == holds


def check_exact(schedule, proof, period):
    n = schedule.num_workers
    is_exact = all(entry == Fraction(1, n) for row in period for entry in row)
    assert ("exact-consensus" in proof) == is_exact
    if is_exact:
        assert proof["exact-consensus"].status is Status.PROVED


def check_contraction(proof, period):
    norm = np.linalg.norm(np.array(period, dtype=float) - 1 / len(period), 2)
    squared = float(Fraction(proof["contraction"].entry["squared"]))
    assert norm**2 <= squared * (1 + 1e-9) + 1e-12
    assert squared <= norm**2 + 1e-5
    return norm


def check_clash_of_blocks(schedule):
    """Whether a local rank is in two blocks of a phase; if so, check that the proof reports the first."""
    ranks = [[local for block in phase for local in block.local] for phase in schedule.rule().phases]
    twice = [{local for local in listed if listed.count(local) > 1} for listed in ranks]
    if not any(twice):
        return False
    claim = prove(schedule)["conflict-free"]
    assert claim.status is Status.REFUTED
    t, worker = claim.witness["phase"], claim.witness["worker"]
    assert t == next(t for t, local in enumerate(twice) if local)
    assert worker in twice[t]
    assert all(worker in group for group in claim.witness["groups"])
    assert all(f"{worker}" in block for block in claim.witness["blocks"])
    blocks = [block for block in schedule.rule().phases[t] if worker in block.local]
    first_groups = [group_on_the_first_node(schedule, block) for block in blocks]
    assert sorted(claim.witness["groups"]) == sorted(first_groups)
    check_words(prove(schedule))
    return True


def group_on_the_first_node(schedule, block):
    """Return the workers of a block's group on node 0: on nodes whose digits outside `across` are all 0."""
    rule = schedule.rule()
    nodes = enumerate(product(*(range(radix) for radix in rule.radices)))
    near = [m for m, digits in nodes if not any(x for d, x in enumerate(digits) if d not in block.across)]
    return [m * rule.workers_per_node + local for m in near for local in sorted(block.local)]


def check_words(proof):
    """Check that every claim has an explanation."""
    assert all(claim.explanation.count(" ") > 3 and "None" not in claim.explanation for claim in proof.claims)


def check_groups(schedule):
    if schedule.rule() is not None and check_clash_of_blocks(schedule):
        return
    n, proof = schedule.num_workers, prove(schedule)
    phases = [[(g.members, g.relaxation) for g in schedule.phase(t)] for t in range(schedule.period)]
    clash = [[v for v in range(n) if sum(v in members for members, _ in groups) > 1] for groups in phases]
    assert (proof["conflict-free"].status is Status.REFUTED) == any(clash)
    check_words(proof)
    if any(clash):
        t, witness = next(t for t, workers in enumerate(clash) if workers), proof["conflict-free"].witness
        assert (witness["phase"], witness["worker"]) == (t, clash[t][0])
        assert "at most one group" in witness["rule"]
        one, two = (tuple(group) for group in witness["groups"])
        assert one != two
        assert {one, two} <= {members for members, _ in phases[t]} | {(v,) for v in range(n)}
        assert all(witness["worker"] in group for group in (one, two))
        later = [proof[name] for name in ("doubly-stochastic", "consensus", "deadlock-free", "contraction")]
        assert all(claim.status is Status.NOT_PROVED for claim in later)
        return
    confirm(schedule, proof)
    period = product_of(matrices_of(schedule))
    relaxes = [Fraction(t) for groups in phases for _, t in groups]
    entries = [min(t / len(m), 1 - t + t / len(m)) for groups in phases for m, t in groups for t in [Fraction(t)]]
    smallest = min(entries, default=Fraction(0))
    sums = proof["doubly-stochastic" if smallest >= 0 else "unit-sums"]
    assert sums.numbers == {"smallest_weight": str(smallest)}
    norm = check_contraction(proof, period)
    parts = parts_of([members for groups in phases for members, t in groups if t != 0], n)
    tame = all(0 <= t < 2 for t in relaxes)
    status = proof["consensus"].status
    if len(parts) > 1:
        assert status is Status.REFUTED
        witness = proof["consensus"].witness
        if schedule.rule() is None:
            assert set(witness["workers"]) == min(parts, key=lambda part: (len(part), min(part)))
            assert witness["num_inside"] == len(witness["workers"])
    elif tame:
        assert status is Status.PROVED
        assert proof["consensus"].entry["method"] == "trees"
        if schedule.rule() is None:
            check_tree(proof["consensus"].entry["trees"], phases, n)
    else:
        assert status is (Status.PROVED if norm < 1 - 1e-6 else Status.NOT_PROVED) or 1 - 1e-6 <= norm < 1
    assert proof["deadlock-free"].explanation.startswith("Each worker starts its operations in the order of rounds")
    assert ("prologue" in proof["deadlock-free"].explanation) == bool(schedule.prologue)
    check_exact(schedule, proof, period)
    assert ("membership" in proof) == (schedule.rule() is not None)


def check_tree(trees, phases, n):
    """Check for one tree in order of time whose every edge connects two components."""
    ((*edges,),) = trees
    assert len(edges) == n - 1
    joined = []
    for (t, u, v), (later, _, _) in pairwise([*edges, [len(phases), 0, 0]]):
        assert any({u, v} <= set(members) and u == min(members) and 0 < x < 2 for members, x in phases[t])
        assert not any({u, v} <= part for part in parts_of(joined, n))
        assert t <= later
        joined.append((u, v))
    assert len(parts_of(joined, n)) == 1


@pytest.mark.parametrize("seed", range(32))
def test_explicit_groups_match_exact_arithmetic(seed):
    check_groups(random_groups(seed))


@pytest.mark.parametrize("seed", range(32))
def test_rules_match_exact_arithmetic(seed):
    check_groups(random_rule(seed))


def closed_sets(support):
    """Return the smallest sets of workers without incoming weight from other workers."""
    return set(map(frozenset, nx.attracting_components(nx.DiGraph(np.array(support)))))


@pytest.mark.parametrize("seed", range(36))
def test_graphs_match_exact_arithmetic(seed):
    check_graph(random_graph(seed))


def test_graphs_without_self_weights_are_proved_by_a_power():
    """De Bruijn graphs have no self-weights, but a power of the matrix is positive."""
    for n in (4, 8):
        half = Fraction(1, 2)
        edges = [(v, (2 * v + a) % n, half) for v in range(n) for a in (0, 1) if (2 * v + a) % n != v]
        schedule = of_edges("de Bruijn", Cluster.regular(n, 1), edges)
        check_graph(schedule)
        entry = prove(schedule)["consensus"].entry
        assert (entry["method"], entry["periods"]) == ("power", {4: 2, 8: 3}[n])


def test_zero_weight_edges_do_not_connect_workers():
    zero, half = Fraction(0), Fraction(1, 2)
    edges = [(0, 1, half), (1, 0, half), (1, 2, zero), (2, 1, zero), (2, 3, half), (3, 2, half)]
    schedule = of_edges("two halves", Cluster.regular(4, 1), edges)
    assert prove(schedule)["consensus"].witness == {"closed_sets": [[0, 1], [2, 3]]}


def check_graph(schedule):
    n, proof = schedule.num_workers, prove(schedule)
    matrices = matrices_of(schedule)
    period = product_of(matrices)
    confirm(schedule, proof)
    check_words(proof)
    smallest = min(entry for matrix in matrices for row in matrix for entry in row)
    columns = [[sum(column) for column in zip(*matrix, strict=True)] for matrix in matrices]
    moved = [(t, v, total) for t, sums in enumerate(columns) for v, total in enumerate(sums) if total != 1]
    if moved:
        t, v, total = moved[0]
        assert proof["doubly-stochastic"].status is Status.REFUTED
        assert proof["doubly-stochastic"].witness == {"round": t, "worker": v, "column_sum": str(total)}
        assert "contraction" not in proof
        assert "exact-consensus" not in proof
    else:
        name = "doubly-stochastic" if smallest >= 0 else "unit-sums"
        given = [matrix[v][v] for matrix in matrices for v in range(n)]
        given += [weight for listed in schedule.strategy.graphs for _, _, weight in listed.edges()]
        assert proof[name].numbers == {"smallest_weight": str(min(given))}
        check_contraction(proof, period)
        check_exact(schedule, proof, period)
    values = np.sort(np.abs(np.linalg.eigvals(np.array(period, dtype=float))))
    converges = bool(values[-2] < 1 - 1e-9)
    consensus = proof["consensus"]
    assert (consensus.status is Status.PROVED) <= converges
    assert (consensus.status is Status.REFUTED) <= (not converges)
    if smallest >= 0:
        assert (consensus.status is Status.REFUTED) == (not converges)
        check_refutation(consensus, [[entry > 0 for entry in row] for row in period])
    if smallest >= 0 and converges and all(matrix[i][i] > 0 for matrix in matrices for i in range(n)):
        assert consensus.entry["method"] == "graph"


def check_refutation(consensus, support):
    if consensus.status is not Status.REFUTED:
        return
    if "closed_sets" in consensus.witness:
        one, two = map(frozenset, consensus.witness["closed_sets"])
        assert one != two
        assert {one, two} <= closed_sets(support)
    else:
        around = consensus.witness["cycle_of_sets"]
        assert len(around) > 1
        for before, after in pairwise([*around, around[0]]):
            assert all(any(support[v][u] for u in before) for v in after)
            assert not any(support[v][u] for v in after for u in range(len(support)) if u not in before)


# Exactness


def grid_phases(dims, seed):
    """Return one phase per digit of labels assigned to the workers in random order."""
    n = int(np.prod(dims))
    grid = np.array(Random(seed).sample(range(n), n)).reshape(dims)
    return [[sorted(map(int, g)) for g in np.moveaxis(grid, d, -1).reshape(-1, dims[d])] for d in range(len(dims))]


@pytest.mark.parametrize(("dims", "seed"), [((2, 3), 0), ((2, 3, 4), 1), ((3, 2, 2), 2), ((2, 2, 2, 2), 3), ((5,), 4)])
def test_labels_are_found_at_any_offset_and_permutation(dims, seed):
    n = int(np.prod(dims))
    schedule = explicit(n, [[0, n - 1]], *grid_phases(dims, seed), [[1, 2]])
    proof = prove(schedule)
    entry = proof["exact-consensus"].entry
    assert (entry["method"], entry["first"], entry["radices"]) == ("labels", 1, list(dims))
    confirm(schedule, proof)
    check_groups(schedule)


def test_labels_need_every_worker_in_every_phase():
    """A cube without one edge stays connected and all its labels exist, but the mean is not reached."""
    edges = [[(v, v | 1 << d) for v in range(8) if not v >> d & 1] for d in range(3)]
    whole = explicit(8, *edges)
    assert _by_labels(whole.phased.steps(whole.cluster)).entry["radices"] == [2, 2, 2]
    for d in range(3):
        short = explicit(8, *(listed[: 4 - (place == d)] for place, listed in enumerate(edges)))
        assert _by_labels(short.phased.steps(short.cluster)) is None
        assert "exact-consensus" not in prove(short)


HALVES = [[(0, 1), (2, 3), (4, 5)], [(0, 2), (1, 4), (3, 5)], [(0, 1), (2, 3), (4, 5)]]


def copies_of_halves(copies, last=Fraction(4, 3)):
    """Return copies of six workers, exact by relaxed pairs, that are then averaged; no labels exist."""
    phases = []
    for place, pairs in enumerate(HALVES):
        factor = Fraction(4, 3) if place == 1 else Fraction(1)
        phases.append([Group((6 * c + u, 6 * c + v), factor) for c in range(copies) for u, v in pairs])
    phases[1][-1] = Group(phases[1][-1].members, last)
    if copies > 1:
        phases.append([Group(tuple(range(r, 6 * copies, 6)), Fraction(1)) for r in range(6)])
    return explicit(6 * copies, *phases)


def test_product_method_has_a_size_limit():
    small = prove(copies_of_halves(1))
    assert small["exact-consensus"].entry["method"] == "product"
    confirm(copies_of_halves(1), small)
    large = prove(copies_of_halves(22))
    assert "exact-consensus" not in large
    confirm(copies_of_halves(22), large)


def test_nearly_exact_schedules_are_not_proved_exact():
    """Floats cannot distinguish them from exact schedules."""
    for copies in (1, 22):
        proof = prove(copies_of_halves(copies, Fraction(4, 3) + Fraction(1, 10**6)))
        assert "exact-consensus" not in proof


# Contents of a proof


def claim_of(name, status):
    return Claim(name, status, "because")


def proof_of(*claims, essential=("a", "doubly-stochastic")):
    return Proof("p", claims, frozenset(essential), {})


def test_verdict_follows_essential_claims_and_refutations():
    yes, no, open_ = Status.PROVED, Status.REFUTED, Status.NOT_PROVED
    whole = (claim_of("a", yes), claim_of("doubly-stochastic", yes))
    assert proof_of(*whole).verdict is yes
    assert proof_of(*whole, claim_of("rate", open_)).verdict is yes
    assert proof_of(*whole, claim_of("rate", no)).verdict is no
    assert proof_of(claim_of("a", open_), whole[1]).verdict is open_
    assert proof_of(whole[0]).verdict is open_
    assert proof_of(whole[0], claim_of("unit-sums", yes)).verdict is yes
    assert proof_of(whole[0], claim_of("unit-sums", open_)).verdict is open_
    assert proof_of(*whole, essential=()).verdict is open_
    assert proof_of(replace(claim_of("a", no), is_property=True), essential="a").verdict is open_
    assert proof_of(whole[0]).absent == {"doubly-stochastic"}
    assert proof_of(whole[0], claim_of("unit-sums", yes)).absent == frozenset()


def test_proof_lookup_and_printing():
    one = refuted("a", "so", {"w": 1})
    proof = Proof("p", (proved("b", "thus", rows=2), one), frozenset(), {})
    assert proof["a"] is one
    assert "b" in proof
    assert "c" not in proof
    with pytest.raises(KeyError, match="c"):
        proof["c"]
    assert proof.explain() == "consensus is not guaranteed\nb: proved. thus\na: refuted. so"
    assert proof.to_json() == {
        "verdict": "refuted",
        "consensus": "not guaranteed",
        "claims": [{"claim": "b", "status": "proved"}, {"claim": "a", "status": "refuted", "witness": {"w": 1}}],
    }
    assert proof["b"].entry == {"claim": "b", "rows": 2}
    check_error(RefutedError, "schedule 'p': a is refuted: so", proof.require)
    fine = Proof("p", (proved("b", "thus"), not_proved("c", "open")), frozenset(), {})
    assert fine.require() is fine
    assert not_proved("c", "open") == Claim("c", Status.NOT_PROVED, "open")


def test_kinds_without_statements_are_refused(monkeypatch):
    server = Schedule("s", Cluster.regular(1, 2), Server())
    assert prove(server).verdict is Status.FOLLOWS
    rows = tuple(Statement(name, lambda _: None, essential=always) for name in "bca")
    monkeypatch.setitem(STATEMENTS, "server", rows)
    proof = prove(server)
    assert [(claim.claim, claim.status) for claim in proof.claims] == [(name, Status.NOT_PROVED) for name in "abc"]
    monkeypatch.delitem(STATEMENTS, "server")
    check_error(ScheduleError, "strategy 'server': has nothing to prove", prove, server)


def test_rank_sets_are_truncated_after_12():
    assert some([]) == "{}"
    assert some(np.array([3, 1])) == "{3,1}"
    assert some(range(12)) == "{0,1,2,3,4,5,6,7,8,9,10,11}"
    assert some(range(13)) == "{0,1,2,3,4,5,6,7,8,9,10,11,… (13 in all)}"
    assert some([4, 5, 6], 2) == "{4,5,… (3 in all)}"
