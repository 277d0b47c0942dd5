"""Claims about neighbors that keep a gap: proved as a setting allows, confirmed by the checker, refused elsewhere."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from helpers.claims import facts_of
from helpers.gap_bounds import named
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import METHODS
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import NeighborAveraging, Round
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap, SkipPolicy, UpdateOrder
from partreduce.verify import checker, prove
from partreduce.verify.base import Status
from partreduce.verify.checker.gaps import two_closed_sets
from partreduce.verify.checker.refusal import Work
from partreduce.verify.gap_bounds import capacities_of, exact_bounds
from partreduce.verify.iteration_gap import halves

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


def kept(rounds, gap, n):
    return Schedule("kept", Cluster.regular(n, 1), NeighborAveraging(rounds=(rounds,), sync=gap))


def ring_based_16(gap):
    return kept(METHODS["metropolis"](ring_based(16)), gap, 16)


def confirmed(schedule, certificate):
    read = checker.read_schedule(json.loads(json.dumps(dump_schedule(schedule))))
    return list(checker.check(json.loads(json.dumps(certificate)), read))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings_are_proved_and_confirmed(name):
    """Hop's graph of 16 workers: essentials hold; the mean is a property, and without consensus a file is refuted."""
    gap = PAPER[name]
    schedule = ring_based_16(gap)
    proof = prove(schedule)
    assert proof.verdict is (Status.REFUTED if gap.has_backup else Status.PROVED)
    assert proof.without_consensus().verdict is (Status.FOLLOWS if gap.has_backup else Status.PROVED)
    assert proof.guarantees_consensus == (not gap.has_backup)
    assert confirmed(schedule, proof.certificate) == [entry["claim"] for entry in proof.certificate["claims"]]
    facts = facts_of(dump_schedule(schedule))
    stated = {claim.claim: claim.numbers for claim in proof.claims if claim.status in (Status.FACT, Status.FOLLOWS)}
    assert facts == stated
    assert {"deadlock-free", "queues", "gap", "gap-of-pairs", "memory", "staleness"} <= facts.keys()
    assert ("skip" in facts) == (gap.skip is not None)
    names = {claim.claim for claim in proof.claims}
    assert (names >= MATRICES) == gap.takes_all
    assert not (names & MATRICES) or gap.takes_all
    if not gap.takes_all:
        assert proof["mean-preserved"].status is Status.REFUTED
        assert proof["mean-preserved"].is_property
        assert proof["consensus"].status is (Status.REFUTED if gap.has_backup else Status.PROVED)
    graph = named("ring-based", 16)
    exact = exact_bounds(graph, gap)
    assert facts["queues"]["update"] == [exact[u][v] + 1 for u, v in graph.edges]
    assert facts["gap-of-pairs"]["bound"] == max(bound for row in exact for bound in row)
    assert facts["memory"]["places"] == max(sum(capacities_of(graph, gap, w).slots.values()) for w in range(16))


def test_the_program_confirms_a_schedule_that_keeps_a_gap(tmp_path):
    schedule = ring_based_16(PAPER["skips"])
    (tmp_path / "s.json").write_text(json.dumps(dump_schedule(schedule)))
    (tmp_path / "c.json").write_text(json.dumps(dict(prove(schedule).certificate)))
    line = [sys.executable, "-I", "-S", str(Path(checker.__file__).parent), "c.json", "s.json"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout
    assert [row.split(":")[0] for row in result.stdout.splitlines()][:2] == ["deadlock-free", "queues"]
    assert result.stdout.splitlines()[0].endswith("follows from the protocol's rules")


def test_a_setting_without_matrices_gets_no_claim_about_them():
    """What holds of the same graph in synchronous rounds is refused, claim by claim."""
    plain = Schedule(
        "kept", Cluster.regular(16, 1), NeighborAveraging(rounds=ring_based_16(IterationGap()).strategy.rounds)
    )
    synchronous = dict(prove(plain).certificate)
    lossy = ring_based_16(PAPER["skips"])
    own = dict(prove(lossy).certificate)
    for entry in synchronous["claims"]:
        expected = "do without none of" if entry["claim"] == "consensus" else "a claim about lossy gap"
        with pytest.raises(checker.Refusal, match=expected):
            confirmed(lossy, {**own, "claims": [entry]})
    assert confirmed(ring_based_16(PAPER["staleness"]), dict(prove(ring_based_16(PAPER["staleness"])).certificate))


@pytest.mark.parametrize("weight", [Fraction(1), Fraction(-1, 3)])
def test_weights_that_are_no_average_are_not_proved_with_backup_workers_either(weight):
    """With all updates there, what differs is multiplied by -2 (weight 1) or 2 (weight -1/3) in every step."""
    edges = [(u, v, weight) for u in range(3) for v in range(3) if u != v]
    rounds = Round.from_edges(3, edges)
    assert prove(kept(rounds, IterationGap(max_ig=3, backup=1), 3)).verdict is Status.NOT_PROVED
    uniform = prove(kept(rounds, IterationGap(max_ig=3, backup=1, weights=EdgeWeighting.UNIFORM), 3))
    assert uniform.verdict is Status.FOLLOWS


def closed_pairs(sources, spare):
    """Two disjoint sets that can close themselves, by trying all sets."""
    n = len(sources)
    closed = [
        set(members)
        for size in range(1, n)
        for members in itertools.combinations(range(n), size)
        if all(len(set(sources[v]) - set(members)) <= spare[v] for v in members)
    ]
    return [(a, b) for a, b in itertools.combinations(closed, 2) if not a & b]


def test_two_closing_sets_are_found_if_and_only_if_there_are_two():
    """What the checker finds, and what the prover finds quickly, against all sets of all workers."""
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
        schedule = kept(Round.from_edges(n, weights), IterationGap(max_ig=1, backup=tuple(spare)), n)
        proof = prove(schedule)
        assert (proof["consensus"].status is Status.FOLLOWS) == (not expected)
        assert ("consensus" in facts_of(dump_schedule(schedule))) == (not expected)
    assert min(answers.values()) > 15


def test_workers_of_two_closing_sets_may_never_agree_and_others_do():
    """The recursion with the latest updates left out: the sets keep their values; without such sets all agree."""
    rng = random.Random("worst case")
    everyone = 5
    for spare, agrees in ((2, True), (3, False)):
        sources = [[u for u in range(everyone) if u != v] for v in range(everyone)]
        pair = two_closed_sets(sources, [spare] * everyone, Work("consensus"))
        assert (pair is None) == agrees
        values = [float(v) for v in range(everyone)] if agrees else [float(v in pair[0]) for v in range(everyone)]
        for _ in range(400):
            taken = []
            for v in range(everyone):
                late = rng.sample(sources[v], spare)
                if not agrees:
                    home = next((half for half in pair if v in half), set())
                    late = [u for u in sources[v] if u not in home][:spare]
                taken.append([u for u in sources[v] if u not in late])
            values = [values[v] + sum(0.2 * (values[u] - values[v]) for u in taken[v]) for v in range(everyone)]
        assert (max(values) - min(values) < 1e-6) == agrees


def test_many_workers_are_certified_by_what_is_near_them():
    n = 600
    gap = IterationGap(max_ig=4, backup=1, staleness=2, skip=SkipPolicy(limit=10))
    schedule = kept(METHODS["metropolis"](ring_based(n)), gap, n)
    proof = prove(schedule)
    assert proof.without_consensus().verdict is Status.FOLLOWS
    assert "gap-of-pairs" not in proof
    facts = facts_of(dump_schedule(schedule))
    assert facts == {c.claim: c.numbers for c in proof.claims if c.status in (Status.FACT, Status.FOLLOWS)}
