"""Schedule documents: load and dump are inverse, and the hash depends on the content only."""

import json
import resource
from fractions import Fraction
from itertools import islice
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.readings import in_order
from helpers.refusals import check_error
from helpers.small import of_groups, of_phases, of_rule
from partreduce import Cluster, Schedule, load_schedule, write_schedule
from partreduce.errors import DocumentError, FileError, ScheduleError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import Block, FailurePlan, Group, Phase, SurvivorRule
from partreduce.topo.document.canonical import canonical_bytes
from partreduce.topo.document.phases import GroupModel, is_clean, phase_text, plain_phase
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Averaging,
    DelayedAveraging,
    DynamicGroups,
    GroupPhases,
    GroupSplit,
    NeighborAveraging,
    Pairwise,
    Round,
    RulePhases,
    Server,
    SlowWorkerPolicy,
    StaticGroups,
    Synchronous,
    Transport,
)
from partreduce.topo.survivors import after_failure, planned_failures

SUMS = (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)
SYNCS = (Synchronous(), DelayedAveraging())

properties = settings(max_examples=35)

fractions = st.fractions(min_value=-3, max_value=3, max_denominator=10**6)
relaxes = st.one_of(st.just(Fraction(1)), fractions)
names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20)


@st.composite
def clusters(draw):
    if draw(st.booleans()):
        return Cluster.regular(draw(st.integers(1, 5)), draw(st.integers(2, 4)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    ranks = draw(st.permutations(range(sum(sizes))))
    return Cluster.irregular([[ranks.pop() for _ in range(size)] for size in sizes])


@st.composite
def phases(draw, num_workers):
    """Groups that load, including overlapping ones, which `verify` refutes."""
    count = draw(st.integers(0, 4))
    members = st.sets(st.integers(0, num_workers - 1), min_size=2, max_size=num_workers)
    return Phase.from_groups(num_workers, [Group(tuple(draw(members)), draw(relaxes)) for _ in range(count)])


@st.composite
def rule_phases(draw, size, digits):
    colors = draw(st.lists(st.integers(-1, size - 1), min_size=size, max_size=size))
    return tuple(
        Block(
            tuple(draw(st.permutations([rank for rank in range(size) if colors[rank] == color]))),
            tuple(draw(st.permutations(sorted(draw(st.sets(st.sampled_from(range(digits)))) if digits else set())))),
            draw(relaxes),
        )
        for color in sorted(set(colors) - {-1})
    )


@st.composite
def failure_plans(draw, cluster, strategy):
    """A valid plan, or the simplest one if groups share a worker."""
    rules = [SurvivorRule.ALL_REDUCE]
    if isinstance(strategy, StaticGroups):
        rules.append(SurvivorRule.KEEP_GROUPS)
        rules += [SurvivorRule.REAPPLY_RULE] * isinstance(strategy.phases, RulePhases)
    plan = FailurePlan(draw(st.sampled_from(rules)), draw(st.integers(1, min(4, cluster.num_workers - 2))))
    try:
        return Schedule("planned", cluster, strategy, failure_plan=plan).failure_plan
    except ScheduleError:
        return FailurePlan(SurvivorRule.ALL_REDUCE, plan.failures)


def common(draw, num_workers, sync_types=SYNCS, algorithms=(AllReduceAlgorithm.RING,)):
    worker_steps = st.lists(st.integers(1, 5), min_size=num_workers, max_size=num_workers).map(tuple)
    return {
        "steps_per_round": draw(st.one_of(st.integers(1, 9), worker_steps)),
        "sync": draw(st.sampled_from(sync_types)),
        "transport": Transport(algorithm=draw(st.sampled_from(algorithms))),
        "averaging": draw(st.sampled_from(Averaging)),
    }


@st.composite
def schedules(draw):
    kind = draw(st.sampled_from(["rule", "groups", "allreduce", "neighbor", "dynamic_groups", "pairwise", "server"]))
    if kind == "rule":
        radices = tuple(draw(st.lists(st.integers(2, 4), max_size=3)))
        cluster = Cluster.regular(prod(radices), draw(st.integers(2, 4)))
        size = cluster.workers_per_node
        listed = draw(st.lists(rule_phases(size, len(radices)), min_size=1, max_size=3))
        strategy = StaticGroups(
            phases=RulePhases(radices, tuple(listed)),
            prologue=draw(st.integers(0, 3)),
            **common(draw, cluster.num_workers, algorithms=SUMS),
        )
    else:
        cluster = draw(clusters())
        n = cluster.num_workers
        if kind == "groups":
            listed = draw(st.lists(phases(n), min_size=1, max_size=3))
            strategy = StaticGroups(
                phases=GroupPhases(tuple(listed)), prologue=draw(st.integers(0, 3)), **common(draw, n, algorithms=SUMS)
            )
        elif kind == "allreduce":
            strategy = AllReduce(**common(draw, n, algorithms=SUMS))
        elif kind == "dynamic_groups":
            alone = any(len(cluster.workers_of(node)) < 2 for node in range(cluster.num_nodes))
            possible = [division for division in GroupSplit if not (alone and division is GroupSplit.NODE_THEN_ALL)]
            strategy = DynamicGroups(
                group_size=draw(st.integers(2, n)),
                division=draw(st.sampled_from(possible)),
                all_every=draw(st.integers(1, 9)),
                slow_worker_policy=draw(st.sampled_from(SlowWorkerPolicy)),
                slow_threshold=draw(st.none() | st.integers(1, 9)),
                seed=draw(st.integers(0, 2**53 - 1)),
                **common(draw, n, (Synchronous(),), SUMS),
            )
        elif kind == "pairwise":
            active = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n - 1, unique=True))
            between = [(a, b) for a in range(n) for b in range(n) if a < b and (a in active) != (b in active)]
            edges = st.lists(st.sampled_from(between), unique=True, min_size=1, max_size=6).map(tuple)
            strategy = Pairwise(
                active=tuple(active), edges=draw(st.none() | edges), seed=draw(st.integers(0, 9)), **common(draw, n)
            )
        elif kind == "server":
            synchronous = draw(st.booleans())
            strategy = Server(
                hosts=tuple(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True))),
                synchronous=synchronous,
                staleness=None if synchronous else draw(st.none() | st.integers(0, 9)),
                **common(draw, n),
            )
        else:
            pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
            edges = st.lists(st.sampled_from(pairs), unique=True, max_size=8)
            rounds = tuple(
                Round.from_edges(n, [(a, b, draw(fractions)) for a, b in draw(edges)])
                for _ in range(draw(st.integers(1, 3)))
            )
            strategy = NeighborAveraging(rounds=rounds, **common(draw, n))
    certificate = draw(st.one_of(st.none(), st.just({}), st.just({"claims": [{"x": [1, "2/3"]}]})))
    able = (
        isinstance(strategy, StaticGroups | AllReduce)
        and isinstance(strategy.sync, Synchronous)
        and cluster.num_workers > 2
    )
    planned = draw(st.none() | failure_plans(cluster, strategy)) if able else None
    return Schedule(draw(names), cluster, strategy, certificate, planned)


@properties
@given(schedules())
def test_load_inverts_dump(schedule):
    dumped = dump_schedule(schedule)
    for text in (json.dumps(dumped), json.dumps(dumped, ensure_ascii=False, indent=1), schedule_text(schedule)):
        loaded = parse_schedule(text.encode())
        assert loaded == in_order(schedule)
        assert loaded.certificate == schedule.certificate
        assert dump_schedule(loaded) == dumped
        assert canonical_bytes(loaded) == canonical_bytes(schedule)


@properties
@given(schedules())
def test_loaded_failure_plan_covers_its_failures(schedule):
    plan = schedule.failure_plan
    for failed in islice(planned_failures(schedule, plan), 100) if plan is not None else ():
        survivors = after_failure(schedule, failed)
        assert survivors.num_workers == schedule.num_workers - len(failed)
        assert len(survivors.steps()) == survivors.period
        assert parse_schedule(json.dumps(dump_schedule(survivors)).encode()) == in_order(survivors)


@properties
@given(schedules())
def test_canonical_form_is_sorted_compact_json_without_certificate(schedule):
    canonical = canonical_bytes(schedule)
    document = json.loads(canonical)
    assert json.dumps(document, sort_keys=True, separators=(",", ":")).encode() == canonical
    assert "certificate" not in document
    assert canonical_bytes(parse_schedule(canonical)) == canonical
    assert schedule_sha256(schedule) == schedule_sha256(schedule.with_certificate({"other": 1}))


def shuffle(document, rng):
    """Reorder groups, blocks, ranks, digits, edges and keys without changing the schedule."""
    strategy = document["strategy"]
    for phase in strategy.get("phases", []):
        rng.shuffle(phase)
        for item in phase:
            for key in item.keys() & {"group", "local", "across"}:
                rng.shuffle(item[key])
            relaxation = Fraction(item.get("relaxation", 1))
            item["relaxation"] = f"{2 * relaxation.numerator}/{2 * relaxation.denominator}"
    for listed in strategy.get("rounds", []):
        order = rng.permutation(len(listed["edges"]))
        if isinstance(listed["weights"], list):
            listed["weights"] = [listed["weights"][i] for i in order]
        listed["edges"] = [listed["edges"][i] for i in order]
    if isinstance(strategy.get("steps_per_round", 1), int):
        n = parse_schedule(json.dumps(document).encode()).num_workers
        strategy["steps_per_round"] = [strategy.get("steps_per_round", 1)] * n
    return {key: document[key] for key in rng.permutation(list(document))}


@properties
@given(schedules(), st.integers(0, 2**32 - 1))
def test_hash_ignores_order_and_layout(schedule, seed):
    other = parse_schedule(json.dumps(shuffle(dump_schedule(schedule), np.random.default_rng(seed)), indent=3))
    assert schedule_sha256(other) == schedule_sha256(schedule)
    assert in_order(other) == in_order(schedule)


def test_hash_changes_with_every_setting():
    base = of_groups("s", Cluster.regular(2, 2), [[0, 1], [2, 3]])
    variants = [
        base,
        Schedule("t", base.cluster, base.strategy),
        Schedule("s", Cluster.regular(1, 4), base.strategy),
        Schedule("s", base.cluster, AllReduce()),
        Schedule("s", base.cluster, AllReduce(steps_per_round=2)),
        Schedule("s", base.cluster, AllReduce(sync=DelayedAveraging())),
        Schedule("s", base.cluster, AllReduce(averaging=Averaging.STEP_NORMALIZED)),
        Schedule("s", base.cluster, StaticGroups(phases=base.strategy.phases, prologue=1)),
        of_phases("s", base.cluster, base.strategy.phases.phases * 2),
        of_groups("s", base.cluster, [[0, 2], [1, 3]]),
        of_groups("s", base.cluster, [Group((0, 1), Fraction(1, 2))]),
        of_groups("s", base.cluster, [[0, 1]]),
        of_rule("s", base.cluster, (2,), ((Block((0, 1)),),)),
        Schedule("s", base.cluster, base.strategy, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 1)),
        Schedule("s", base.cluster, base.strategy, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 2)),
        Schedule("s", base.cluster, base.strategy, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1)),
    ]  # fmt: skip
    assert len({schedule_sha256(schedule) for schedule in variants}) == len(variants)


def test_hash_of_a_known_schedule_never_changes():
    """Certificates contain this hash, so changing the canonical form would invalidate all of them."""
    expected = (
        b'{"cluster":{"num_nodes":2,"workers_per_node":2},"format":"partreduce.schedule","name":"pairs","strategy":'
    )
    expected += b'{"kind":"static","phases":[[{"group":[0,2]},{"group":[1,3],"relaxation":"4/3"}]]},"version":1}'
    phase = Phase.from_groups(4, [Group((3, 1), Fraction(4, 3)), Group((0, 2))])
    schedule = of_phases("pairs", Cluster.regular(2, 2), (phase,))
    assert canonical_bytes(schedule) == expected
    assert schedule_sha256(schedule) == "4d76cffcc59f14cdeddd581ca2d97a6ec8c02a1324a01ba85649e75a1ad6dfca"


def test_file_round_trip_and_atomic_replacement(tmp_path):
    first = Schedule("first", Cluster.regular(2, 2), AllReduce())
    second = Schedule("second", Cluster.regular(2, 2), AllReduce(steps_per_round=3))
    path, link = tmp_path / "schedule.json", tmp_path / "link.json"
    write_schedule(path, first)
    link.symlink_to(path)
    assert load_schedule(link) == first
    write_schedule(link, second)
    assert link.is_symlink()
    assert load_schedule(path) == second
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["link.json", "schedule.json"]


def test_written_file_has_the_default_mode(tmp_path):
    write_schedule(tmp_path / "a.json", Schedule("a", Cluster.regular(2, 2), AllReduce()))
    (tmp_path / "b").touch()
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_invalid_schedule_keeps_the_previous_file(tmp_path):
    path = tmp_path / "schedule.json"
    good = Schedule("good", Cluster.regular(2, 2), AllReduce())
    write_schedule(path, good)
    for bad in (Schedule("two\nlines", good.cluster, AllReduce()), Schedule("", good.cluster, AllReduce())):
        check_error(ScheduleError, "cannot be written", write_schedule, path, bad)
    with pytest.raises(ScheduleError, match=r"certificate\.x\[0\]: is 90071992547409920, an integer beyond"):
        write_schedule(path, good.with_certificate({"x": [90071992547409920]}))
    check_error(
        ScheduleError, r"certificate\.x: is NaN", write_schedule, path, good.with_certificate({"x": float("nan")})
    )
    too_fine = Fraction(1, 10**70)
    phase = Phase.from_groups(4, [Group((0, 1), too_fine)])
    check_error(ScheduleError, "more than 64 digits", write_schedule, path, of_phases("s", good.cluster, (phase,)))
    check_error(FileError, "cannot be written", write_schedule, tmp_path / "absent" / "schedule.json", good)
    check_error(FileError, "cannot be written", write_schedule, tmp_path, good)
    assert load_schedule(path) == good
    assert len(list(tmp_path.iterdir())) == 1


def test_phases_are_written_one_per_line():
    phases = tuple(Phase.from_groups(4, [[0, 1 + t], [2 - t % 2, 3]]) for t in range(2))
    text = schedule_text(of_phases("s", Cluster.regular(2, 2), phases))
    assert '      [{"group": [0, 1]}, {"group": [2, 3]}],\n' in text
    assert len(text.splitlines()) == 13


@properties
@given(st.data())
def test_bulk_check_accepts_only_what_the_model_accepts(data):
    """The bulk check replaces the model for clean phases, so it must not be less strict."""
    junk = st.one_of(
        st.booleans(), st.none(), st.floats(allow_nan=False), st.text(max_size=3), st.just(-1), st.just([])
    )
    members = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 9), junk), max_size=4)
    item = st.fixed_dictionaries(
        {}, optional={"group": st.one_of(members, junk), "relaxation": st.one_of(st.just("1/2"), junk), "x": st.just(1)}
    )
    clean = st.fixed_dictionaries({"group": st.lists(st.integers(0, 9), min_size=2, max_size=3)})
    phase = data.draw(st.lists(st.one_of(clean, item), max_size=3))
    try:
        for raw in phase:
            GroupModel.model_validate(raw)
        accepted = True
    except ValueError:
        accepted = False
    if is_clean(phase) and not any(m < 0 for raw in phase for m in raw["group"]):  # ranks are checked on arrays
        assert accepted
    if accepted:
        assert is_clean(phase)


@properties
@given(phases(6), st.booleans())
def test_fast_phase_text_equals_its_json(phase, spaced):
    text = phase_text(phase, spaced=spaced)
    assert json.loads(text) == plain_phase(phase)
    assert (" " in text) == (spaced and len(phase) > 0)


def test_large_explicit_schedule_round_trips():
    """20,000 groups of 3 to 5 workers, in shuffled order, over two chunks of the depth scan."""
    rng = np.random.default_rng(7)
    n = 80_000
    labels = rng.integers(0, n // 4, n)
    phase = Phase.from_labels(labels)
    schedule = of_phases("large", Cluster.regular(n // 4, 4), (phase, phase))
    document = dump_schedule(schedule)
    for listed in document["strategy"]["phases"]:
        rng.shuffle(listed)
    loaded = parse_schedule(json.dumps(document).encode())
    assert loaded == schedule
    assert schedule_sha256(loaded) == schedule_sha256(schedule)


def test_million_worker_rule_is_a_small_file():
    block = (Block((0,), (0, 1)), Block((2, 3)))
    schedule = of_rule("rule", Cluster.regular(250_000, 4), (2, 125_000), (block,))
    assert len(canonical_bytes(schedule)) < 300
    assert parse_schedule(canonical_bytes(schedule)) == schedule


def test_certificate_is_kept_and_bounded():
    schedule = Schedule("s", Cluster.regular(2, 2), AllReduce(), {"claims": [], "numbers": ["1" * 500]})
    assert parse_schedule(schedule_text(schedule).encode()).certificate == schedule.certificate
    text = schedule_text(schedule).replace('"1', "1").replace('1"', "1")
    check_error(
        DocumentError, r"certificate\.numbers\[0\]: is 1+\.\.\., an integer beyond", parse_schedule, text.encode()
    )


def test_interrupted_write_keeps_the_previous_file(tmp_path):
    """The kernel's limit on file sizes of 1,000 bytes simulates a full disk."""
    path = tmp_path / "schedule.json"
    good = Schedule("good", Cluster.regular(2, 2), AllReduce())
    write_schedule(path, good)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        check_error(FileError, "cannot be written", write_schedule, path, good.with_certificate({"long": "x" * 5000}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_schedule(path) == good
    assert len(list(tmp_path.iterdir())) == 1
