"""Facts about iteration gaps from prover and checker, and the standalone checker program."""

import itertools
import json
import random
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.explore.hop import exact_bounds
from helpers.claims import confirm_claims, facts_of
from helpers.gap_bounds import graph_of
from helpers.read_edges import gap
from helpers.readings import read
from helpers.refusals import check_error
from helpers.small import of_edges
from partreduce import Cluster, Schedule
from partreduce.files import dump_schedule
from partreduce.strategies import EdgeWeighting, IterationGap, NeighborAveraging, Round, SkipPolicy, UpdateOrder
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import METHODS
from partreduce.verify import checker, prove
from partreduce.verify.base import Status
from partreduce.verify.checker.claims import fact
from partreduce.verify.checker.gaps import two_closed_sets
from partreduce.verify.checker.refusal import TooLarge, Work
from partreduce.verify.gap_bounds import capacities_of, events_of
from partreduce.verify.iteration_gap import halves

CHECKER = Path(checker.__file__).parent


def test_too_expensive_search_is_refused():
    events = events_of(graph_of("ring", 6), IterationGap())
    check_error(TooLarge, "here: too large", events.leads, 0, range(6), Work("here", 100))


@pytest.mark.parametrize("name", ["a copy of version-1.0", "json"])
def test_checker_folder_runs_standalone_under_any_name(tmp_path, name):
    """Also with files next to it and in it that shadow modules of the standard library."""
    shutil.copytree(CHECKER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for stranger in ("fractions.py", "random.py", "refusal.py", f"{name}/hashlib.py"):
        (tmp_path / stranger).write_text("raise ImportError('a stranger was imported')")
    ring = [(v, (v + d) % 6, Fraction(1, 3)) for v in range(6) for d in (1, 5)]
    schedule = of_edges("r", Cluster.regular(6, 1), ring, sync=IterationGap(max_ig=2))
    (tmp_path / "s.json").write_text(json.dumps(dump_schedule(schedule)))
    (tmp_path / "c.json").write_text(json.dumps(dict(prove(schedule).certificate)))
    line = [sys.executable, "-I", "-S", str(tmp_path / name), "c.json", "s.json"]
    result = subprocess.run(line, env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert "consensus: proved" in lines
    assert "gap: follows from the protocol's rules: bound 1" in lines


def test_checker_runs_as_a_module_without_warnings():
    line = [sys.executable, "-W", "error", "-m", "partreduce.verify.checker", "only one file"]
    result = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (65, "")
    assert result.stdout.startswith("unreadable: usage: ")


# Iteration-gap claims: proved as the setting allows, confirmed by the checker, refused elsewhere


MATRICES = {"doubly-stochastic", "contraction", "consensus-distance"}
PAPER = {
    "standard": IterationGap(),
    "parallel": IterationGap(max_ig=4, update_order=UpdateOrder.DPSGD),
    "notify-ack": IterationGap(notify_ack=True),
    "backup": IterationGap(max_ig=4, backup=1),
    "staleness": IterationGap(max_ig=4, staleness=5, weights=EdgeWeighting.ITERATION),
    "staleness alone": IterationGap(staleness=2),
    "hybrid": IterationGap(max_ig=4, backup=1, staleness=5, weights=EdgeWeighting.UNIFORM),
    "skips": IterationGap(max_ig=4, backup=1, skip=SkipPolicy(limit=10)),
    "stale skips": IterationGap(max_ig=4, staleness=5, skip=SkipPolicy(limit=10)),
}


def gap_schedule(rounds, gap, n):
    return Schedule("kept", Cluster.regular(n, 1), NeighborAveraging(rounds=(rounds,), sync=gap))


def ring_based_16(gap):
    return gap_schedule(METHODS["metropolis"](ring_based(16)), gap, 16)


@pytest.mark.parametrize("name", PAPER)
def test_settings_of_the_hop_paper_are_proved_and_confirmed(name):
    """On Hop's graph of 16 workers essential claims hold except consensus with backup workers."""
    gap = PAPER[name]
    schedule = ring_based_16(gap)
    proof = prove(schedule)
    assert proof.verdict is (Status.REFUTED if gap.has_backup else Status.PROVED)
    assert proof.without_consensus().verdict is (Status.FOLLOWS if gap.has_backup else Status.PROVED)
    assert proof.guarantees_consensus == (not gap.has_backup)
    assert confirm_claims(schedule) == [entry["claim"] for entry in proof.certificate["claims"]]
    facts = facts_of(dump_schedule(schedule))
    stated = {claim.claim: claim.numbers for claim in proof.claims if claim.status in (Status.FACT, Status.FOLLOWS)}
    assert facts == stated
    assert {"deadlock-free", "queues", "gap", "memory", "staleness"} <= facts.keys()
    names = {claim.claim for claim in proof.claims}
    assert (names >= MATRICES) == gap.takes_all
    assert not (names & MATRICES) or gap.takes_all
    if not gap.takes_all:
        assert proof["mean-preserved"].status is Status.REFUTED
        assert proof["mean-preserved"].is_property
        assert proof["consensus"].status is (Status.REFUTED if gap.has_backup else Status.PROVED)
    graph = graph_of("ring-based", 16)
    exact = exact_bounds(graph, gap)
    assert facts["queues"]["update"] == [exact[u][v] + 1 for u, v in graph.edges]
    assert facts["gap"]["bound"] == max(bound for u, v in graph.edges for bound in (exact[u][v], exact[v][u]))
    assert facts["memory"]["places"] == max(sum(capacities_of(graph, gap, w).slots.values()) for w in range(16))


def test_lossy_gap_settings_have_no_matrix_claims():
    """Claims that hold for the same graph in synchronous rounds are refused one by one."""
    plain = Schedule(
        "kept", Cluster.regular(16, 1), NeighborAveraging(rounds=ring_based_16(IterationGap()).strategy.rounds)
    )
    synchronous = dict(prove(plain).certificate)
    lossy = ring_based_16(PAPER["skips"])
    own = dict(prove(lossy).certificate)
    for entry in synchronous["claims"]:
        expected = "do without none of" if entry["claim"] == "consensus" else "a claim about lossy gap"
        check_error(checker.Refusal, expected, confirm_claims, lossy, {**own, "claims": [entry]})


@pytest.mark.parametrize("weight", [Fraction(1), Fraction(-1, 3)])
def test_non_averaging_weights_are_not_proved_with_backup_workers(weight):
    """With all updates, every step multiplies differences by -2 (weight 1) or 2 (weight -1/3)."""
    edges = [(u, v, weight) for u in range(3) for v in range(3) if u != v]
    rounds = Round.from_edges(3, edges)
    assert prove(gap_schedule(rounds, IterationGap(max_ig=3, backup=1), 3)).verdict is Status.NOT_PROVED
    uniform = prove(gap_schedule(rounds, IterationGap(max_ig=3, backup=1, weights=EdgeWeighting.UNIFORM), 3))
    assert uniform.verdict is Status.FOLLOWS


def closed_pairs(sources, spare):
    """Return all pairs of disjoint closed sets by trying all sets."""
    n = len(sources)
    closed = [
        set(members)
        for size in range(1, n)
        for members in itertools.combinations(range(n), size)
        if all(len(set(sources[v]) - set(members)) <= spare[v] for v in members)
    ]
    return [(a, b) for a, b in itertools.combinations(closed, 2) if not a & b]


def test_two_closed_sets_matches_exhaustive_search():
    """The checker's search and the prover's faster one against all sets of workers."""
    rng = random.Random("closing sets")
    answers = {True: 0, False: 0}
    for _ in range(120):
        n = rng.randrange(2, 8)
        edges = {(v, (v + 1) % n) for v in range(n)} | {(v, (v - 1) % n) for v in range(n)}
        edges |= {tuple(rng.sample(range(n), 2)) for _ in range(rng.randrange(n * n))}
        sources = [sorted(s for s, t in edges if t == v) for v in range(n)]
        spare = [rng.randrange(min(3, len(listed)) + 1) for listed in sources]
        expected = closed_pairs(sources, spare)
        found = two_closed_sets(sources, spare, Work("consensus"))
        assert (found is None) == (not expected)
        for pair in filter(None, (found, halves(sources, spare))):
            assert not pair[0] & pair[1]
            for half in pair:
                assert all(len(set(sources[v]) - half) <= spare[v] for v in half)
        answers[found is None] += 1
        if not any(spare):
            continue
        weights = [(s, t, Fraction(1, n + 1)) for s, t in sorted(edges)]
        schedule = gap_schedule(Round.from_edges(n, weights), IterationGap(max_ig=1, backup=tuple(spare)), n)
        proof = prove(schedule)
        assert (proof["consensus"].status is Status.FOLLOWS) == (not expected)
        assert ("consensus" in facts_of(dump_schedule(schedule))) == (not expected)
    assert min(answers.values()) > 15


def test_gap_facts_of_many_workers_use_local_neighborhoods():
    n = 600
    gap = IterationGap(max_ig=4, backup=1, staleness=2, skip=SkipPolicy(limit=10))
    schedule = gap_schedule(METHODS["metropolis"](ring_based(n)), gap, n)
    proof = prove(schedule)
    assert proof.without_consensus().verdict is Status.FOLLOWS
    facts = facts_of(dump_schedule(schedule))
    assert facts == {c.claim: c.numbers for c in proof.claims if c.status in (Status.FACT, Status.FOLLOWS)}


@pytest.mark.parametrize("name", ["gap", "queues", "staleness", "memory"])
def test_first_requested_gap_fact_pays_for_the_bounds(name):
    schedule = read(gap(staleness=1))
    assert fact(schedule, name, limit=1).numbers is None
    assert fact(schedule, name).numbers is not None
