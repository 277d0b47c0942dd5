"""The verdicts pass correct records and detect every kind of wrong one."""

import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.faults import verdicts
from benchmarks.faults.kinds import KINDS, WORKERS
from benchmarks.faults.processes import belonging
from benchmarks.faults.running import Cell, Outcome, Running, Task
from benchmarks.faults.views import Replay, states
from helpers.waiting import until

STEPS = 6


def line(what, instant, step, values, more=None):
    rows = [[float(value), float(value)] for value in values] + [[1.0, 1.0]]
    return [what, instant, step, rows, more]


def correct_run(name):
    """Return the records of four workers of a kind with a reference in a run without faults."""
    lag = KINDS[name].lag
    held = states(KINDS[name], STEPS + lag)
    diaries = []
    for rank in range(WORKERS):
        lines = [line("begins", 0.0, 0, held[0][rank], 1)]
        for step in range(STEPS):
            lines.append(line("enters", step, step, held[step][rank]))
            lines.append(line("leaves", step + 0.5, step, held[step + 1][rank], []))
        lines.append(line("finishes", STEPS, STEPS, held[STEPS][rank]))
        lines.append(line("finished", STEPS, STEPS, held[STEPS + lag].mean(axis=0)))
        diaries.append(lines)
    return diaries


@pytest.fixture
def judge_records(tmp_path):
    """A function that writes the records of a cell and returns the violations of a verdict."""

    def judge(verdict, diaries, kind="static", **facts):
        for rank, lines in enumerate(diaries):
            (tmp_path / f"worker-{rank}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
        cell = Cell(kind, "a fault", "run", 1)
        made = Running(cell, Task(str(tmp_path), "", 3.0, STEPS, 1), tmp_path, cell.random, Outcome(cell), **facts)
        verdict(made)
        return made.outcome.violations

    return judge


WITH_REFERENCE = [name for name, kind in KINDS.items() if kind.law == "reference"]


@pytest.mark.parametrize("name", [name for name in WITH_REFERENCE if KINDS[name].strategy.payload.outer.is_plain])
def test_reference_keeps_the_sum_of_progress(name):
    held = states(KINDS[name], STEPS)
    steps = np.maximum(np.arange(STEPS + 1) - KINDS[name].lag, 0)
    assert np.allclose(held.mean(axis=1), steps[:, None] / WORKERS)


def test_reference_of_outer_steps_is_nesterov_momentum():
    """Movements are 3/4 per round; the momentum is 3/4, then 0.9 · 3/4 + 3/4 = 1.425."""
    first = 0.7 * (0.75 + 0.9 * 0.75)
    assert np.allclose(states(KINDS["outer"], 6)[[3, 6]][:, 2], [[first], [first + 0.7 * (0.75 + 0.9 * 1.425)]])


def test_reference_of_a_late_merge_uses_values_of_the_previous_step():
    """Movements are 2/4; the worker of the row keeps half of its 3, the others half of their 0."""
    outer_params = 0.7 * (0.5 + 0.9 * 0.5)
    late = states(KINDS["outer merged late"], 3)[3]
    assert np.allclose(late[:, 2], [outer_params / 2, outer_params / 2, (3 + outer_params) / 2, outer_params / 2])


def test_reference_of_fragments_and_pairs_by_hand():
    """Row 0 is merged after 1 of 3 steps, row 3 after 3; workers in no pair with the owner of a row hold none of it."""
    x = states(KINDS["fragments"], 3)
    step = 0.7 * (1 + 0.9)
    assert np.allclose(x[1][:, 0], step / 4)
    assert np.allclose(x[1:3, 3, 3], [1, 2])
    assert np.allclose(x[3][:, 3], step * 3 / 4)
    pairs = states(KINDS["outer of pairs"], 2)[2]
    assert np.allclose(pairs[:, 0], [0.7, 0.7, 0, 0])


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_correct_run_passes(judge_records, name):
    assert judge_records(verdicts.judge_values, correct_run(name), kind=name) == []


def corrupt(diaries, kind):
    """Change one record of worker 2 as a bug of the runtime would."""
    entry = diaries[2][4]
    assert (entry[0], entry[2]) == ("leaves", 1)
    rows = entry[3]
    one = next(row for row in range(WORKERS) if rows[row][0])  # a ring has not connected all workers by then
    if kind == "a partial sum":
        rows[one] = [rows[one][0] / 2, rows[one][1]]
    elif kind == "weights that do not sum to 1":
        rows[WORKERS] = [0.75, 0.75]
    elif kind == "a member that did not enter":
        rows[one] = [0.0, 0.0]
    elif kind == "a member that entered twice":
        rows[1] = [2 * value + 0.5 for value in rows[1]]
    elif kind == "not a number":
        rows[0] = [float("nan"), float("nan")]
    elif kind == "no average at all":
        entry[3] = diaries[2][3][3]


CORRUPTIONS = (
    "a partial sum", "weights that do not sum to 1", "a member that did not enter", "a member that entered twice",
    "not a number", "no average at all",
)  # fmt: skip


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_wrong_average_is_detected(judge_records, name, corruption):
    diaries = correct_run(name)
    corrupt(diaries, corruption)
    assert any(
        text.startswith("wrong: worker 2 leaves step 1") for text in judge_records(verdicts.judge_values, diaries, name)
    )


def test_failed_worker_keeps_its_values_with_or_without_its_last_step(judge_records):
    diaries = [lines[:5] for lines in correct_run("static")]
    had = np.array([low for low, _ in diaries[0][-1][3][:WORKERS]])
    own = np.eye(WORKERS)[0]

    def verdict(values):
        failed = [*diaries[0], line("failed", 9.0, 2, values, "PeerFailedError")]
        return judge_records(verdicts.judge_values, [failed, *diaries[1:]])

    assert verdict(had) == verdict(had + own) == []
    assert verdict((had + own) / 2)
    assert verdict(had + 2 * own)


def test_members_of_a_granted_group_hold_its_mean_or_their_old_values(judge_records):
    def diaries(after):
        start = np.zeros(WORKERS)
        granted = [[7, [0, 3]]]
        lines = [
            [line("enters", 0, 0, start), line("leaves", 1, 0, np.eye(WORKERS)[rank] if rank else after, [])]
            for rank in range(WORKERS)
        ]
        for rank, values in ((0, after), (3, [0.5, 0, 0, 0.5])):
            lines[rank][1] = line("leaves", 1, 0, values, granted)
        return lines

    for values in ([0.5, 0, 0, 0.5], [1, 0, 0, 0]):
        assert judge_records(verdicts.judge_values, diaries(values), "dynamic_groups") == []
    for values in ([0.5, 0, 0, 0.25], [0.5, 0.5, 0, 0], [0.25, 0, 0, 0.25]):
        assert judge_records(verdicts.judge_values, diaries(values), "dynamic_groups"), values


def test_asynchronous_server_applies_whole_pushes_once(judge_records):
    def diaries(values):
        lines = [[line("enters", 0, 0, np.zeros(WORKERS))] for _ in range(WORKERS)]
        lines[1].append(line("leaves", 1, 0, values, []))
        return lines

    assert judge_records(verdicts.judge_values, diaries([1, 1, 0, 0]), "server asynchronous") == []
    for values in ([1, 2, 0, 0], [1, 0, 0, 0], [0.5, 1, 0, 0], [3, 1, 0, 0], [-1, 1, 0, 0]):
        assert judge_records(verdicts.judge_values, diaries(values), "server asynchronous"), values


def test_quorum_counts_every_gradient_once(judge_records):
    def diaries(second, last):
        lines = [[line("enters", 0, 0, np.zeros(WORKERS)), line("enters", 1, 1, second)] for _ in range(WORKERS)]
        lines[1] = [line("enters", 0, 0, np.zeros(WORKERS)), line("enters", 1, 1, [0.25, 0, 0, 0])]
        return [[*own, line("finished", 2, 4, last)] for own in lines]

    good = [0.25, 0, 0, 0], [0.5] * WORKERS
    assert judge_records(verdicts.judge_values, diaries(*good), "quorum solo") == []
    for second, last in (([0, 0.25, 0, 0], good[1]), ([0.2, 0, 0, 0], good[1]), (good[0], [0.5, 0.5, 0.5, 0.75])):
        assert judge_records(verdicts.judge_values, diaries(second, last), "quorum solo"), (second, last)


ALL, REST = [-1, [0, 1, 2, 3]], [3, [0, 1, 2]]


def step_of(kind, turn):
    """Return the step after which a turn takes place."""
    return next(step for step in range((turn + 1) * kind.steps_a_round, -1, -1) if kind.turn_of(step) == turn)


def run_with_loss(kind, views=(ALL, REST, [5, [0, 1, 2, 3]]), lost=(3,)):
    """Return the records of a run that loses workers in turn 3, which rejoin in turn 5.

    The first of them has the state of worker 0, and each other one the state of the one before.
    """
    kind, steps = KINDS[kind], STEPS * KINDS[kind].steps_a_round
    replay, diaries = Replay(kind, [(after, tuple(members)) for after, members in views]), [[] for _ in range(WORKERS)]
    joins = step_of(kind, 5)
    for step in range(steps):
        before, members = replay.x.copy(), replay.members(step)
        given, donors = {}, (0, *lost)
        for donor, rank in itertools.pairwise(donors):
            given[rank] = given.get(donor, before[donor]) + np.eye(WORKERS)[donor] * (not kind.gradients)
            if step == joins:
                diaries[rank].append(line("begins", step, 0, np.zeros(WORKERS), 7))
        replay.step(step, given if step == joins else {})
        known = [view for view in views if view[0] <= kind.turn_of(step)]
        for rank in (rank for rank in members if rank not in lost or kind.turn_of(step) < 3 or step >= joins):
            begun = given[rank] if rank in lost and step == joins else before[rank]
            diaries[rank].append(line("enters", step, step, begun))
            diaries[rank].append(line("leaves", step + 0.5, step, replay.x[rank], known))
    for rank, lines in enumerate(diaries):
        lines.insert(0, line("begins", 0.0, 0, np.zeros(WORKERS), 1))
        lines.append(line("finishes", steps, steps, replay.x[rank]))
        lines.append(line("finished", steps, steps, replay.ends(steps)[-1]))
    return diaries


CONTINUING = [name for name, kind in KINDS.items() if kind.law == "views"]


@pytest.mark.parametrize("kind", CONTINUING)
def test_survivors_match_a_replay_of_the_membership_views(judge_records, kind):
    assert judge_records(verdicts.judge_values, run_with_loss(kind), kind) == []
    for rank, place, amount in ((1, -4, 0.3), (0, 9, 0.25), (3, -3, 0.3)):
        found = run_with_loss(kind)
        rows = found[rank][place][3]
        rows[2] = [rows[2][0] + amount] * 2
        (text, *_) = judge_records(verdicts.judge_values, found, kind)
        assert text.startswith(f"wrong: worker {rank} ")


@pytest.mark.parametrize("amount", [0, 0.3])
def test_attempts_of_a_restarted_run_are_judged_separately(judge_records, amount):
    first, second = run_with_loss(kind := "elastic allreduce"), run_with_loss(kind)
    for entry in (entry for lines in second for entry in lines if entry[0] == "begins"):
        entry[2] = 1
    second[1][5][3][2] = [second[1][5][3][2][0] + amount] * 2
    messages = judge_records(verdicts.judge_values, [a[:-2] + b for a, b in zip(first, second, strict=True)], kind)
    assert len(messages) == bool(amount), messages


@pytest.mark.parametrize(
    ("fault", "starved", "is_wrong"), [("kill joiner", False, True), ("kill joiner", True, False),
                                       ("kill three, restart", False, False)]
)  # fmt: skip
def test_restart_of_all_workers_only_passes_where_expected(tmp_path, fault, starved, is_wrong):
    (tmp_path / "output.txt").write_text("partreduce: attempt 1 ended with exit code 137; all workers begin again\n")
    cell = Cell("elastic outer", fault, "run", 1)
    running = Running(cell, Task(str(tmp_path), "", 3.0, STEPS, 1), tmp_path, cell.random, Outcome(cell))
    running._lacked.extend([(0.0, 0.0), (1.0, 4.0)] if starved else [])
    verdicts.judge_attempts(running)
    assert bool(running.outcome.violations) == is_wrong
    assert ("may restart" in running.outcome.note) == starved


def test_different_membership_views_are_detected(judge_records):
    found = run_with_loss("elastic allreduce")
    lines = [entry for entry in found[1] if entry[0] == "leaves"]
    lines[3][4] = [ALL, [3, [0, 1, 3]]]
    (text, *_) = judge_records(verdicts.judge_values, found, "elastic allreduce")
    assert text.startswith("wrong: mixed generations: worker 1 in step 3")


def test_commits_of_a_lost_worker_alone_are_ignored(judge_records):
    found = run_with_loss("elastic allreduce")
    again = next(place for place, entry in enumerate(found[3]) if place and entry[0] == "begins")
    found[3][again:again] = [line("enters", 3, 3, [0.75] * 4), line("leaves", 3, 3, [1.0] * 4, [ALL])]
    assert judge_records(verdicts.judge_values, found, "elastic allreduce") == []


@pytest.mark.parametrize("kind", CONTINUING)
def test_worker_that_rejoins_in_its_last_step_is_judged_twice(judge_records, kind):
    """Both of its processes enter that step with different values, and each is judged by its own state."""
    for amount in (0, 0.3):
        found = run_with_loss(kind, views=(ALL, [5, ALL[1]]))
        replay, joins = Replay(KINDS[kind], [(-1, tuple(ALL[1]))]), step_of(KINDS[kind], 5)
        for step in range(joins):
            replay.step(step, {})
        again = next(place for place, entry in enumerate(found[3]) if place and entry[0] == "begins")
        found[3].insert(again, line("enters", joins, joins, replay.x[3] + amount))
        assert len(judge_records(verdicts.judge_values, found, kind)) == bool(amount), amount


def test_worker_joining_a_late_average_has_the_round_start_of_its_donor():
    """Worker 2 has the state of 0, and 3 that of 2: all three have the values of 0 at the start of the round."""
    replay, own = Replay(KINDS["elastic late"], [(-1, tuple(ALL[1]))]), np.eye(WORKERS)
    start = replay.x = np.arange(WORKERS**2, dtype=float).reshape(WORKERS, WORKERS)
    of_2 = start[0] + own[0]
    of_3 = of_2 + own[2]
    moved = (3 * start[0] + start[1]) / WORKERS - start[0]
    replay.step(0, {3: of_3, 2: of_2})
    assert np.allclose(replay.x[2:], [of_2 + own[2] + moved, of_3 + own[3] + moved])


def test_donor_that_fails_in_the_round_of_the_join_took_its_own_steps():
    """Worker 3 joins with the state of worker 0, which then fails: the others merge as they would have with 0."""
    kind = KINDS["elastic merged late"]
    joins, all_ranks, own = step_of(kind, 1), tuple(ALL[1]), np.eye(WORKERS)
    without_3 = Replay(kind, [(-1, all_ranks), (1, (0, 1, 2))])
    replay = Replay(kind, [*without_3.views, (1, (1, 2, 3))])
    for step in range(joins):
        without_3.step(step, {})
        replay.step(step, {})
    assert np.allclose(replay.x[0], without_3.x[0])
    begun = without_3.x[0] + own[0]
    without_3.step(joins, {})
    replay.step(joins, {3: begun})
    assert np.allclose(replay.x[1:3], without_3.x[1:3])
    assert np.allclose(replay.x[3], without_3.x[0] + kind.kept * own[3])


@pytest.mark.parametrize("amount", [0, 0.3])
def test_worker_joining_in_the_first_step_may_have_the_step_of_its_donor(judge_records, amount):
    kind, views = KINDS["elastic late"], [ALL, [0, ALL[1]]]
    replay, begun = Replay(kind, [(after, tuple(members)) for after, members in views]), np.eye(WORKERS)[0]
    diaries = [[line("begins", 0, 0, np.zeros(WORKERS), 1)] for _ in range(WORKERS)]
    diaries[3] += [line("enters", 0, 0, np.zeros(WORKERS)), line("begins", 1, 0, np.zeros(WORKERS), 7)]
    for step in range(3):
        before = replay.x.copy()
        replay.step(step, {3: begun} if step == 0 else {})
        for rank, lines in enumerate(diaries):
            lines.append(line("enters", step, step, begun + amount if (rank, step) == (3, 0) else before[rank]))
            lines.append(line("leaves", step, step, replay.x[rank], views))
    violations = judge_records(verdicts.judge_values, diaries, "elastic late")
    assert any("worker 3 joined step 0" in text for text in violations) == bool(amount), violations
    assert amount or not violations


@pytest.mark.parametrize("amount", [0, 0.3])
def test_worker_joining_from_a_new_donor_has_exactly_its_state(judge_records, amount):
    found = run_with_loss(kind := "elastic outer", views=(ALL, [3, [0, 1]], [5, ALL[1]]), lost=(2, 3))
    first = next(entry for entry in found[3] if entry[0] == "enters" and entry[2] == step_of(KINDS[kind], 5))
    first[3][1] = [first[3][1][0] + amount] * 2
    messages = judge_records(verdicts.judge_values, found, kind)
    assert any("worker 3 joined step" in text and "which no one had" in text for text in messages) == bool(amount)
    assert amount or not messages


def ending(seconds, text="worker 3 was killed", what="failed"):
    return [line("begins", 0.0, 0, np.zeros(WORKERS), os.getpid()), line(what, seconds, 0, np.zeros(WORKERS), text)]


FAULT = {"fault_time": 10.0, "culprit": r"worker 3\b", "victims": {3}}


LACK = "worker 3 was killed (worker 0 waited in step 7 for a token to enter step 8 from worker 3)"
STARVED = [(10.0, 0.0), (12.0, 1.0), (12.9, 3.1)]
FEW, LONG = [*STARVED[:2], (12.9, 2.9)], [(10.0, 0.0), (13.5, 1.6), (17.0, 3.2)]
SOON, LATE, LACKED, LATER = ending(12.0), ending(18.5), ending(12.0, LACK), ending(13.1)
FINISHED, MUST, KIND = ending(12.0, what="finished"), {"must_finish": True}, "elastic allreduce"
HELD_UP = {"must_finish": True, "lasts": 1.5, "overdue": 1.5}
LOST, UNDONE = "did not continue: workers [0, 2] did not finish", "did not finish"
ENDS = {
    "names the culprit in time": ("static", [SOON] * 3, {}, None),
    "is late": ("static", [SOON, LATE, SOON], {}, "late: worker 1 ended after 8.5 s, limit 8 s"),
    "is late because the machine is busy": ("static", [SOON, LATE, SOON], {"overdue": 0.6}, None),
    "is later than the busy machine explains": (
        "static",
        [SOON, LATE, SOON],
        {"overdue": 0.4},
        "late: worker 1 ended after 8.5 s, limit 8.4 s",
    ),
    "never ends": ("static", [SOON, SOON, SOON[:1]], {}, "late: worker 2 ended never"),
    "blames worker 1": ("static", [SOON, ending(12.0, "waits for worker 1"), SOON], {}, "unnamed: {1: 'waits for "),
    "with a gap names the missing token": ("gap tokens", [LACKED] * 3, {}, None),
    "with a gap names no token": ("gap tokens", [LACKED, SOON, LACKED], {}, "vague: {1: 'worker 3 was killed'}"),
    "should have finished": ("static", [SOON] * 4, MUST, UNDONE),
    "is held up by the machine": ("static", [LATER] * 4, HELD_UP, None),
    "is held up for less": ("static", [LATER] * 4, {**HELD_UP, "overdue": 1.4}, UNDONE),
    "is held up, the script fails": ("static", [ending(13.1, what="raised"), *[LATER] * 3], HELD_UP, UNDONE),
    "is held up and never ends": ("static", [LATER[:1], *[LATER] * 3], HELD_UP, UNDONE),
    "does not continue": (KIND, [SOON, FINISHED, SOON], {}, LOST),
    "starves for a timeout within one": (KIND, [SOON, FINISHED, SOON], {"_lacked": STARVED}, None),
    "starves, the script fails": (KIND, [SOON, FINISHED, ending(12.0, what="raised")], {"_lacked": STARVED}, LOST),
    "starves for less": (KIND, [SOON, FINISHED, SOON], {"_lacked": FEW}, LOST),
    "starves in a longer stretch": (KIND, [SOON, FINISHED, SOON], {"_lacked": LONG}, LOST),
}
"""Kind, records of the survivors of worker 3, load of the machine, and the last violation."""


@pytest.mark.parametrize("name", ENDS)
def test_verdict_on_survivors(judge_records, name):
    def kill_worker(running):
        running.cell = replace(running.cell, fault="kill worker")
        verdicts.judge_ends(running)

    kind, diaries, facts, expected = ENDS[name]
    messages = judge_records(kill_worker, diaries, kind, **{**FAULT, **facts})
    assert not messages if expected is None else messages[-1].startswith(expected), messages


def test_end_of_a_worker_is_the_time_of_its_last_sighting(judge_records):
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as worker:
        before = []

        def verdict(running):
            running.pid = worker.pid
            running.code = 0
            running.look()
            before.append(time.monotonic())
            worker.communicate()
            time.sleep(0.2)
            running.look()
            assert running.gone[3] < before[0]

        lines = [line("begins", 0.0, 0, np.zeros(WORKERS), worker.pid)]
        judge_records(verdict, [[], [], [], lines])


def test_leftover_processes_are_found_by_session_and_mark(tmp_path):
    code = "import time; time.sleep(60)"
    own = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    marked = subprocess.Popen(
        [sys.executable, "-S", "-c", code], start_new_session=True, env={"FAULTS_MARK": str(tmp_path)}
    )
    try:
        until(lambda: set(belonging(own.pid, str(tmp_path))) == {own.pid, marked.pid})
    finally:
        for process in (own, marked):
            process.kill()
            process.wait()
    assert belonging(own.pid, str(tmp_path)) == []


def test_crash_in_the_output_is_detected(judge_records, tmp_path):
    (tmp_path / "output.txt").write_text("[1] all is well\n[2] terminate called after throwing an instance of\n")
    (text,) = judge_records(verdicts.judge_crashes, [])
    assert text.startswith("crash: [2] terminate called")


def test_damaged_checkpoint_with_a_manifest_is_detected(tmp_path):
    import hashlib

    folder = tmp_path / "round-00000001"
    folder.mkdir()
    (folder / "worker-00000.safetensors").write_bytes(b"whole")
    good = {"workers": [{"sha256": hashlib.sha256(b"whole").hexdigest()}]}
    (folder / "manifest.json").write_text(json.dumps(good))
    assert verdicts.judge_checkpoints(tmp_path) == []
    (folder / "worker-00000.safetensors").write_bytes(b"who")
    assert verdicts.judge_checkpoints(tmp_path)
