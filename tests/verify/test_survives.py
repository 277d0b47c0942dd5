"""What a proof says about losses is what every single loss shows, taken out by brute force."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, Survivors, after_loss
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.losses import Symmetries, losses_of_nodes
from partreduce.topo.mixing import period_product
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Codec, Form, GroupPhases, How, Outer, Routes, RulePhases, Static
from partreduce.verify import checker, prove
from partreduce.verify.base import Proof, Status

WORKERS = 2


def planned(schedule: Schedule, workers: int = WORKERS, groups: Survivors = Survivors.REMAINING) -> Schedule:
    """The schedule with the same contingency for each class of losses of so many workers, and of nodes."""
    symmetries = Symmetries.of(schedule)
    losses = {lost for count in range(1, workers + 1) for lost in symmetries.classes(count)}
    losses |= set(losses_of_nodes(schedule, symmetries))
    return replace(schedule, contingencies=tuple(Contingency(lost, groups) for lost in losses))


def all_losses(schedule: Schedule, workers: int = WORKERS) -> list[tuple[int, ...]]:
    found = {lost for count in range(1, workers + 1) for lost in combinations(range(schedule.num_workers), count)}
    nodes = map(schedule.cluster.workers_of, range(schedule.cluster.num_nodes))
    return sorted(found | {tuple(sorted(node)) for node in nodes if len(node) <= schedule.num_workers - 2})


def norm(schedule: Schedule, lost: tuple[int, ...]) -> float:
    """What a period of the survivors' leaves of differences."""
    found = after_loss(schedule, lost)
    return float(np.linalg.norm(period_product(found) - 1 / found.num_workers, 2))


def agree(schedule: Schedule, lost: tuple[int, ...]) -> bool:
    """Whether the survivors' groups join them, by walking."""
    found = after_loss(schedule, lost)
    reached, before = {0}, set()
    while reached != before:
        before = set(reached)
        for group in (group for phase in map(found.phase, range(found.period)) for group in phase if group.relax):
            if reached & set(group.members):
                reached |= set(group.members)
    return len(reached) == found.num_workers


def confirmed(schedule: Schedule, proof: Proof) -> list[str]:
    """The claims that the stand-alone checker confirms."""
    document, certificate = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), proof.certificate))
    return list(checker.check(certificate, checker.read_schedule(document)))


@pytest.mark.parametrize(
    "options",
    [
        {"how": How(form=Form.HIERARCHICAL, codec=Codec.INT8)},
        {"what": Routes(outer=Outer(lr=0.7, momentum=0.9, nesterov=True))},
    ],
    ids=["a codec", "outer steps"],
)
def test_of_codecs_and_outer_steps_the_claim_is_about_the_groups_and_says_so(options: dict[str, Any]) -> None:
    nodes = RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),)))
    schedule = planned(Schedule("nodes", Cluster.regular(3, 2), Static(phases=nodes, **options)))
    proof = prove(schedule)
    assert proof.verdict is Status.PROVED
    assert "survives" in confirmed(schedule, proof)
    (claim,) = (claim for claim in proof.claims if claim.claim == "survives")
    said = "This speaks of exact averages" if "how" in options else "Outer steps move all workers alike"
    assert said in claim.explanation


def random_schedule(seed: int) -> Schedule:
    rng = np.random.default_rng(seed)
    relaxes = [Fraction(1), Fraction(1), Fraction(1), Fraction(1, 2), Fraction(5, 4)]

    def relax() -> Fraction:
        return relaxes[int(rng.integers(len(relaxes)))]

    if seed % 2:
        radices, size = [((3,), 3), ((2, 2), 2), ((2, 3), 2), ((4,), 2), ((), 5)][seed // 2 % 5]
        phases = []
        for _ in range(int(rng.integers(2, 4))):
            colours = rng.integers(0, 2, size)
            phases.append(
                tuple(
                    Block(
                        tuple(np.flatnonzero(colours == c).tolist()),
                        tuple(d for d in range(len(radices)) if rng.random() < 0.6),
                        relax(),
                    )
                    for c in sorted(set(colours.tolist()))
                )
            )
        nodes = int(np.prod(radices, dtype=int))
        return Schedule(f"rule {seed}", Cluster.regular(nodes, size), Static(phases=RulePhases(radices, tuple(phases))))
    cluster = Cluster.irregular([[0, 1, 2], [3, 4], [5, 6]])
    listed = []
    for _ in range(int(rng.integers(2, 5))):
        labels = rng.permutation(7) // int(rng.integers(2, 5))
        phase = Phase.from_labels(labels)
        listed.append(Phase.from_groups(7, [Group(group.members, relax()) for group in phase]))
    return Schedule(f"groups {seed}", cluster, Static(phases=GroupPhases(tuple(listed))))


@pytest.mark.parametrize("seed", range(30))
def test_the_verdict_and_every_bound_are_what_brute_force_finds_for_each_single_loss(seed: int) -> None:
    schedule = planned(random_schedule(seed))
    losses = all_losses(schedule)
    lonely = {Symmetries.of(schedule).representative(lost) for lost in losses if not agree(schedule, lost)}
    proof = prove(schedule)
    if lonely:
        assert proof["survives"].status is Status.REFUTED
        assert tuple(proof["survives"].witness["lost"]) in lonely
        assert proof.verdict is Status.REFUTED
    schedule = replace(
        schedule,
        contingencies=tuple(
            Contingency(one.lost, Survivors.ALL) if one.lost in lonely else one for one in schedule.contingencies
        ),
    )
    proof = prove(schedule)
    claim = proof["survives"]
    assert claim.status is Status.PROVED, claim.explanation
    assert claim.entry["answers"]
    assert "survives" in confirmed(schedule, proof)
    bounds = dict(zip((one.lost for one in schedule.contingencies), map(Fraction, claim.entry["squared"]), strict=True))
    symmetries = Symmetries.of(schedule)
    for lost in losses:
        assert agree(schedule, lost)
        assert norm(schedule, lost) ** 2 == pytest.approx(float(bounds[symmetries.representative(lost)]), abs=1e-8)


def test_one_proof_holds_for_every_number_of_nodes() -> None:
    """The bounds of one rule on more nodes are those of each single loss there."""
    for nodes in (3, 5, 8):
        rule = RulePhases(
            (nodes,), ((Block((0, 1), (0,)), Block((2,))), (Block((0,)), Block((1, 2), (0,))), (Block((0, 2)),))
        )
        schedule = planned(Schedule("rule", Cluster.regular(nodes, 3), Static(phases=rule)))
        proof = prove(schedule)
        bounds = dict(
            zip((one.lost for one in schedule.contingencies), proof["survives"].entry["squared"], strict=True)
        )
        symmetries = Symmetries.of(schedule)
        for lost in all_losses(schedule):
            bound = float(Fraction(bounds[symmetries.representative(lost)]))
            assert norm(schedule, lost) ** 2 == pytest.approx(bound, abs=1e-8)


def test_a_million_workers_are_proved_by_their_classes() -> None:
    both = Block((0, 1, 2, 3), ())
    rule = RulePhases(
        (50, 5000), ((both,), (Block((0, 1), (0,)), Block((2, 3), (1,))), (both,), (Block((0, 2), (0, 1)),))
    )
    schedule = planned(Schedule("rule", Cluster.regular(250_000, 4), Static(phases=rule)))
    proof = prove(schedule)
    assert proof["survives"].entry["answers"] == ""
    assert len(proof["survives"].entry["squared"]) == len(schedule.contingencies) < 50
    assert "survives" in confirmed(schedule, proof)


@pytest.mark.parametrize(
    ("schedule", "entry"),
    [
        (Schedule("all", Cluster.regular(4, 2), AllReduce(pace=4)), {"workers": 2, "nodes": 1, "squared": ["0", "0"]}),
        (Schedule("all", Cluster.irregular([[0, 1, 2], [3]]), AllReduce()), {"workers": 2, "nodes": 1}),
    ],
)
def test_all_reduce_goes_on_exactly(schedule: Schedule, entry: dict[str, object]) -> None:
    proof = prove(planned(schedule))
    assert {key: proof["survives"].entry[key] for key in entry} == entry
    assert "survives" in confirmed(planned(schedule), proof)


RING = Schedule(
    "rule", Cluster.regular(4, 2), Static(phases=RulePhases((4,), ((Block((0, 1)),), (Block((0, 1), (0,)),))))
)


@pytest.mark.parametrize(
    ("contingencies", "lost"),
    [
        ([(0,), (0, 2)], [0, 1]),  # of pairs, that of a node is missing
        ([(0, 1), (0, 2)], [0]),  # single losses are missing
        ([(0,), (1,)], [1]),  # local ranks 0 and 1 are alike
        ([(2,)], [2]),  # so are all nodes
    ],
)
def test_a_loss_that_no_contingency_is_for_refutes(contingencies: list[tuple[int, ...]], lost: list[int]) -> None:
    schedule = replace(RING, contingencies=tuple(map(Contingency, contingencies)))
    claim = prove(schedule)["survives"]
    assert claim.status is Status.REFUTED
    assert claim.witness["lost"] == lost


def test_nodes_alone_and_workers_alone_may_be_covered() -> None:
    for contingencies, covered in (([(0, 1)], (0, 1)), ([(0,)], (1, 0)), ([(0,), (0, 1)], (1, 1))):
        proof = prove(replace(RING, contingencies=tuple(map(Contingency, contingencies))))
        assert (proof["survives"].entry["workers"], proof["survives"].entry["nodes"]) == covered
        assert proof.verdict is Status.PROVED


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_moves_as_stated_and_the_bounds_are_attained(seed: int) -> None:
    schedule = planned(RING)
    numbers, n = prove(schedule)["mean-moved"].numbers, schedule.num_workers
    models = np.random.default_rng(seed).standard_normal((n, 3))
    squared = float(((models - models.mean(0)) ** 2).sum() / n)
    for k, usual, at_most in zip(numbers["lost"], numbers["usual"], numbers["at_most"], strict=True):
        ways = []
        for lost in combinations(range(n), k):
            left = [worker for worker in range(n) if worker not in lost]
            moved = models[left].mean(0) - models.mean(0)
            assert moved == pytest.approx((models.mean(0) - models[list(lost)]).sum(0) / (n - k))
            ways.append(float((moved**2).sum()))
        assert np.mean(ways) == pytest.approx(float(Fraction(usual)) * squared)
        assert max(ways) <= float(Fraction(at_most)) * squared * (1 + 1e-12)
        apart = np.zeros(n)
        apart[:k] = 1
        spread = ((apart - apart.mean()) ** 2).mean()
        assert (apart[k:].mean() - apart.mean()) ** 2 == pytest.approx(float(Fraction(at_most)) * spread)
    joins = [float(((np.vstack([models, donor]).mean(0) - models.mean(0)) ** 2).sum()) for donor in models]
    assert np.mean(joins) == pytest.approx(float(Fraction(numbers["joined"])) * squared)
    assert max(joins) <= float(Fraction(numbers["joined_at_most"])) * squared * (1 + 1e-12)
    apart = np.eye(n)[0]
    spread = ((apart - apart.mean()) ** 2).mean()
    moved = (np.append(apart, 1.0).mean() - apart.mean()) ** 2
    assert moved == pytest.approx(float(Fraction(numbers["joined_at_most"])) * spread)
