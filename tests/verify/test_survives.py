"""The survives claim against brute force over every failure."""

import json
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from benchmarks.forgery.oracle import covered_failures
from helpers.claims import confirm_claims
from helpers.readings import in_order
from helpers.small import of_phases, of_rule
from partreduce import Cluster, Schedule
from partreduce.errors import ScheduleError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import Block, FailurePlan, Group, Phase, RulePhases, StaticGroups, SurvivorRule, Transport
from partreduce.topo.mixing import period_product
from partreduce.topo.strategies import AllReduce, AllReduceAlgorithm, Codec, GroupPhases, OuterStep, Payload
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.verify import checker, prove
from partreduce.verify.base import Status
from partreduce.verify.checker import survives
from partreduce.verify.checker.refusal import Work
from partreduce.verify.checker.survives import Symmetries

WORKERS = 2


KEEP, REAPPLY, ALL = SurvivorRule


def with_plan(schedule, workers=WORKERS, rule=KEEP):
    """Return the schedule with a failure plan for `workers` failures."""
    if schedule.strategy.averages_everyone:
        rule = ALL
    return replace(schedule, failure_plan=FailurePlan(rule, workers))


def all_failures(schedule):
    """The failures that the schedule's plan covers."""
    return sorted(set(covered_failures(dump_schedule(schedule))))


def norm(schedule, failed):
    """Return the contraction of one period of the survivors' schedule."""
    found = after_failure(schedule, failed)
    return float(np.linalg.norm(period_product(found) - 1 / found.num_workers, 2))


def reaches_consensus(schedule, failed):
    """Whether the survivors' groups connect all survivors."""
    found = after_failure(schedule, failed)
    joined = nx.empty_graph(found.num_workers)
    for group in (group for phase in map(found.phase, range(found.period)) for group in phase if group.relaxation):
        nx.add_path(joined, group.members)
    return nx.is_connected(joined)


@pytest.mark.parametrize("options", [
    {"transport": Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.INT8)},
    {"payload": Payload(outer=OuterStep(lr=0.7, momentum=0.9, nesterov=True))},
], ids=["a codec", "outer steps"])  # fmt: skip
def test_survives_covers_only_group_averages_with_codecs_and_outer_steps(options):
    nodes = RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),)))
    schedule = with_plan(Schedule("nodes", Cluster.regular(3, 2), StaticGroups(phases=nodes, **options)))
    proof = prove(schedule)
    assert proof.verdict is Status.PROVED
    assert "survives" in confirm_claims(schedule, proof.certificate)
    (claim,) = (claim for claim in proof.claims if claim.claim == "survives")
    sentence = "This speaks of exact averages" if "transport" in options else "Outer steps move all workers equally"
    assert sentence in claim.explanation


def test_claims_that_a_failure_can_break_are_marked_before_failure():
    """A node of 15 survivors sums by a ring instead of in stages, so codecs round more often."""
    rows = RulePhases((4,), ((Block((0, 1, 2, 3)),), (Block((0, 1, 2, 3), (0,)),)))
    coded = Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.BFLOAT16)
    schedule = with_plan(Schedule("coded", Cluster.regular(4, 4), StaticGroups(phases=rows, transport=coded)), 1)
    proof, larger = prove(schedule), set()
    for failed in all_failures(schedule):
        after = prove(after_failure(schedule, failed))
        for claim in (claim for claim in proof.claims if claim.claim in after and claim.holds):
            assert claim.before_failure or after[claim.claim].holds
            before, found = claim.numbers or {}, after[claim.claim].numbers or {}
            if any(Fraction(found[name]) > Fraction(before[name]) for name in MORE & set(found)):
                assert claim.before_failure, claim.claim
                larger.add(claim.claim)
    assert larger == {"codec-error", "sent-bytes", "doubly-stochastic"}
    assert not any(claim.before_failure for claim in prove(replace(schedule, failure_plan=None)).claims)
    assert proof["codec-error"].to_json()["before_failure"]
    assert "This is so before a failure." in proof.explain()
    assert not proof["survives"].before_failure


MORE = {"relative", "of_worker", "of_node", "smallest_weight", "connections", "groups"}


def random_schedule(seed):
    rng = np.random.default_rng(seed)
    relaxes = [Fraction(1), Fraction(1), Fraction(1), Fraction(1, 2), Fraction(5, 4)]

    def relaxation():
        return relaxes[int(rng.integers(len(relaxes)))]

    if seed % 2:
        radices, size = [((3,), 3), ((2, 2), 2), ((2, 3), 2), ((4,), 2), ((), 5)][seed // 2 % 5]
        phases = []
        for _ in range(int(rng.integers(2, 4))):
            colors = rng.integers(0, 2, size)
            phases.append(
                tuple(Block(tuple(np.flatnonzero(colors == c).tolist()),
                    tuple(d for d in range(len(radices)) if rng.random() < 0.6), relaxation())
                    for c in sorted(set(colors.tolist()))),
            )  # fmt: skip
        nodes = int(np.prod(radices, dtype=int))
        return of_rule(f"rule {seed}", Cluster.regular(nodes, size), radices, tuple(phases))
    cluster = Cluster.irregular([[0, 1, 2], [3, 4], [5, 6]])
    listed = []
    for _ in range(int(rng.integers(2, 5))):
        labels = rng.permutation(7) // int(rng.integers(2, 5))
        phase = Phase.from_labels(labels)
        listed.append(Phase.from_groups(7, [Group(group.members, relaxation()) for group in phase]))
    return of_phases(f"groups {seed}", cluster, listed)


def bounds_of(proof):
    return {tuple(one["failed"]): Fraction(one["squared"]) for one in proof["survives"].entry["classes"]}


def patterns_of(schedule):
    """Return the function from a failure to its pattern for kept groups."""
    return Symmetries.of(checker.read_schedule(json.loads(json.dumps(dump_schedule(schedule)))), Work("it")).pattern


@pytest.mark.parametrize("seed", range(30))
def test_kept_groups_match_brute_force_over_all_failures(seed):
    schedule = with_plan(random_schedule(seed))
    failures, pattern = all_failures(schedule), patterns_of(schedule)
    lonely = {pattern(failed) for failed in failures if not reaches_consensus(schedule, failed)}
    proof = prove(schedule)
    if lonely:
        assert proof["survives"].status is Status.REFUTED
        assert pattern(proof["survives"].witness["failed"]) in lonely
        assert proof.verdict is Status.REFUTED
        schedule = with_plan(schedule, rule=ALL)
        proof = prove(schedule)
    claim = proof["survives"]
    assert claim.status is Status.PROVED, claim.explanation
    assert claim.entry["answers"]
    assert "survives" in confirm_claims(schedule, proof.certificate)
    bounds = {pattern(failed): bound for failed, bound in bounds_of(proof).items()}
    for failed in failures:
        assert reaches_consensus(schedule, failed)
        bound = 0 if lonely else bounds[pattern(failed)]
        assert norm(schedule, failed) ** 2 == pytest.approx(float(bound), abs=1e-8)


@pytest.mark.parametrize("seed", range(1, 30, 2))
@pytest.mark.parametrize("workers", [1, 3])
def test_reapplied_rules_match_brute_force_over_all_failures(seed, workers):
    """Every failure has the norm of a class with as many workers, and every class attains its bound."""
    schedule = with_plan(random_schedule(seed), workers, REAPPLY)
    failures = all_failures(schedule)
    proof = prove(schedule)
    lonely = [failed for failed in failures if not reaches_consensus(schedule, failed)]
    assert (proof["survives"].status is Status.REFUTED) == bool(lonely)
    if lonely:
        assert tuple(proof["survives"].witness["failed"]) in lonely
        return
    assert "survives" in confirm_claims(schedule, proof.certificate)
    bounds, norms = bounds_of(proof), {failed: norm(schedule, failed) ** 2 for failed in failures}
    for failed, bound in bounds.items():
        assert norms[failed] == pytest.approx(float(bound), abs=1e-8)
    for failed, found in norms.items():
        of_as_many = [float(bound) for like, bound in bounds.items() if len(like) == len(failed)]
        assert min(abs(found - bound) for bound in of_as_many) < 1e-8, "some class has this norm"


def random_cluster(rng):
    """Return nodes of 1 to 3 workers with ranks in random order; one in three clusters is regular."""
    if rng.random() < 1 / 3:
        return Cluster.regular(int(rng.integers(2, 5)), int(rng.integers(1, 4)))
    sizes = rng.integers(1, 4, size=int(rng.integers(2, 5)))
    ranks = rng.permutation(int(sizes.sum())).tolist()
    ends = np.cumsum(sizes).tolist()
    return Cluster.irregular([ranks[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)])


def random_schedule_on(rng, cluster):
    n, size = cluster.num_workers, cluster.workers_per_node
    if size is not None and rng.random() < 0.7:
        radices = (2, 2) if cluster.num_nodes == 4 and rng.random() < 0.5 else (cluster.num_nodes,)
        phases = tuple(
            (Block(tuple(range(size)), tuple(d for d in range(len(radices)) if rng.random() < 0.6)),) for _ in range(3)
        )
        return of_rule("rule", cluster, radices, phases)
    listed = [Phase.from_labels(rng.integers(-1, 3, size=n)) for _ in range(int(rng.integers(1, 4)))]
    worker_steps = tuple(rng.integers(1, 3, size=n).tolist())
    return of_phases("groups", cluster, listed, steps_per_round=worker_steps)


def expected_groups(schedule, rule, failed):
    """Return the survivors' groups of each phase in the original ranks."""
    left = frozenset(range(schedule.num_workers)) - frozenset(failed)
    if rule is ALL:
        return [{left}]
    groups = [[group.members for group in phase] for phase in map(schedule.phase, range(schedule.period))]
    return [{frozenset(members) & left for members in phase if len(left.intersection(members)) > 1} for phase in groups]


@pytest.mark.parametrize("seed", range(120))
def test_survivor_groups_agree_in_checker_prover_and_runtime(seed):
    """After every planned failure, also on uneven nodes with ranks in random order."""
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng)
    while cluster.num_workers < 4:
        cluster = random_cluster(rng)
    schedule = random_schedule_on(rng, cluster)
    rules = [KEEP, ALL, *([REAPPLY] if isinstance(schedule.strategy.phases, RulePhases) else [])]
    rule = rules[int(rng.integers(len(rules)))]
    schedule = with_plan(schedule, int(rng.integers(1, min(4, cluster.num_workers - 2) + 1)), rule)
    plan = schedule.failure_plan
    document = json.loads(json.dumps(dump_schedule(schedule)))
    assert parse_schedule(json.dumps(document).encode()) == in_order(schedule)
    read = checker.read_schedule(document)
    assert read.sha256 == schedule_sha256(schedule)
    failures = all_failures(schedule)
    assert sorted(planned_failures(schedule, plan)) == failures
    nodes = survives.all_nodes(read)
    assert sorted(survives.all_failures(read.num_workers, nodes, plan.failures)) == failures
    for failed in failures:
        assert plan.covers(cluster, failed)
        left = [worker for worker in range(schedule.num_workers) if worker not in failed]
        runs = after_failure(schedule, failed)
        assert runs.cluster == cluster.without(failed)
        of_program = [
            {(group.members, str(group.relaxation)) for group in phase} for phase in map(runs.phase, range(runs.period))
        ]
        found, missing = survives.runs_after(read, read.failure_plan, failed)
        of_checker = [
            {(tuple(members), str(relaxation)) for members, _, relaxation in phase}
            for phase in survives.cells_of(found, missing, list(map(range, found.radices)), Work("it")).phases
        ]
        assert of_checker == of_program
        if rule is not REAPPLY or len({worker // (cluster.workers_per_node or 1) for worker in left}) == (
            cluster.num_nodes
        ):
            moved = [{frozenset(left[m] for m in members) for members, _ in phase} for phase in of_program]
            assert moved == expected_groups(schedule, rule, failed)


def test_failure_plans_on_uneven_nodes_get_a_verdict():
    """On these nodes a plan was once a rule for some failures of a class and explicit groups for the others."""
    cluster = Cluster.irregular([[1], [2], [0, 3], [4]])
    phases = GroupPhases((Phase.from_groups(5, [[0, 1, 2, 3, 4]]),))
    for rule in (KEEP, ALL):
        schedule = with_plan(Schedule("uneven", cluster, StaticGroups(phases=phases)), 1, rule)
        proof = prove(schedule)
        assert proof.verdict is Status.PROVED
        assert "survives" in confirm_claims(schedule, proof.certificate)
        assert after_failure(schedule, {3}).num_workers == 4
    with pytest.raises(ScheduleError, match=r"failure_plan\.rule: expected a schedule with node_radices"):
        with_plan(Schedule("uneven", cluster, StaticGroups(phases=phases)), 1, REAPPLY)


@pytest.mark.parametrize("of", [KEEP, REAPPLY])
def test_survives_scales_to_a_million_workers(of):
    both = Block((0, 1), ())
    rule = RulePhases((50, 10_000), ((both,), (Block((0,), (0,)), Block((1,), (1,))), (both,), (Block((0,), (0, 1)),)))
    schedule = with_plan(Schedule("rule", Cluster.regular(500_000, 2), StaticGroups(phases=rule)), rule=of)
    proof = prove(schedule)
    assert proof["survives"].entry["answers"] == ""
    assert 5 < len(proof["survives"].entry["classes"]) < 50
    assert "survives" in confirm_claims(schedule, proof.certificate)


@pytest.mark.parametrize("schedule", [
    Schedule("all", Cluster.regular(4, 2), AllReduce(steps_per_round=4)),
    Schedule("all", Cluster.irregular([[0, 1, 2], [3]]), AllReduce()),
])  # fmt: skip
def test_all_reduce_survivors_need_no_failure_classes(schedule):
    schedule = with_plan(schedule)
    proof = prove(schedule)
    assert (proof["survives"].entry["failures"], proof["survives"].entry["classes"]) == (2, [])
    assert "survives" in confirm_claims(schedule, proof.certificate)
