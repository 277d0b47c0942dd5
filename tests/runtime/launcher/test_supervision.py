"""Environment variables of workers, their shutdown in any order of failures, and deduplicated errors."""

import io
import os
import random
import signal

import pytest

from helpers.scenarios import GeneratorElsewhere
from partreduce import Cluster
from partreduce.errors import EvictedError, UnavailableError
from partreduce.runtime.elastic.coordinator import FailureRule, OnRequest
from partreduce.runtime.launcher import log_multiplexer, supervision
from partreduce.runtime.launcher.launch import worker_env
from partreduce.runtime.launcher.log_multiplexer import ErrorDeduplicator, LogMultiplexer
from partreduce.runtime.launcher.signals import shell_exit_code
from partreduce.runtime.launcher.supervision import ANSWER_SECONDS, Child, Shutdown

GRACE = 5.0
TORCHRUN = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS",
}  # fmt: skip
"""The variables that torchrun sets, except the port, which is not known yet."""


@pytest.mark.parametrize(("num_workers", "num_nodes"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6), (8, 2)])
def test_worker_environment_matches_torchrun(num_workers, num_nodes):
    each = num_workers // num_nodes
    nodes = Cluster.regular(num_nodes, each)
    environments = [worker_env(rank, nodes, None) for rank in range(num_workers)]
    places = [(node, local) for node in range(num_nodes) for local in range(each)]
    assert [(int(one["GROUP_RANK"]), int(one["LOCAL_RANK"])) for one in environments] == places
    assert [int(one["RANK"]) for one in environments] == list(range(num_workers))
    assert [one["ROLE_RANK"] for one in environments] == [one["RANK"] for one in environments]
    for one in environments:
        assert one.keys() >= TORCHRUN
        assert int(one["WORLD_SIZE"]) == int(one["ROLE_WORLD_SIZE"]) == num_workers
        assert (int(one["LOCAL_WORLD_SIZE"]), int(one["GROUP_WORLD_SIZE"])) == (each, num_nodes)
        assert one["MASTER_ADDR"] == "127.0.0.1"


def test_cores_are_divided_among_workers_unless_threads_are_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads(num_workers, given=None):
        return worker_env(0, Cluster.regular(1, num_workers), given)["OMP_NUM_THREADS"]

    assert [threads(count) for count in (1, 4, 5, 12, 100)] == ["12", "3", "2", "1", "1"]
    assert threads(4, 7) == "7"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert (threads(4), threads(4, 7)) == ("2", "7")


class Machine:
    """Processes whose signals are recorded, a settable clock, and a failure rule."""

    def __init__(self, monkeypatch, count=4, most=None, *, patient=False):
        self.now, self.sent = 100.0, []
        self.workers = [Child(rank, 1000 + rank, -1) for rank in range(count)]
        self.outlet = outlet = LogMultiplexer()
        if most is None:
            self.rule = FailureRule(self.workers, outlet, patient=patient)
        else:
            self.rule = OnRequest(self.workers, GeneratorElsewhere(), most, outlet)
        monkeypatch.setattr(supervision.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Child, "signal", lambda child, number: self.sent.append((child.rank, number)))

    def after(self, seconds, shutdown):
        """The (rank, signal) pairs sent within these seconds, polled every 0.1 s."""
        self.sent.clear()
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            shutdown.escalate(self.workers, self.outlet)
        return list(self.sent)

    def ends(self, shutdown, rank, code):
        self.workers[rank].code = code
        if code:
            shutdown.failed(self.workers[rank], self.rule, GRACE)


def to_all(number, ranks):
    return [(rank, number) for rank in ranks]


def test_first_failure_sets_the_code_and_others_get_sigterm_then_sigkill(monkeypatch, capfd):
    machine, shutdown = Machine(monkeypatch), Shutdown()
    machine.ends(shutdown, 2, 0)
    assert machine.after(10 * GRACE, shutdown) == []
    machine.ends(shutdown, 1, 7)
    assert machine.after(GRACE - 0.5, shutdown) == []
    machine.ends(shutdown, 3, 9)  # later failures neither change the code nor extend the deadline
    assert shutdown.code == 7
    assert not shutdown.has_signalled
    assert capfd.readouterr().err == ""
    assert machine.after(1.0, shutdown) == to_all(signal.SIGTERM, [0]), "only to running workers"
    ends = "partreduce: worker 1 ended with exit code 7, so the run ends: SIGTERM to worker 0\n"
    assert capfd.readouterr().err == ends
    assert shutdown.has_signalled
    assert machine.after(1.5, shutdown) == []
    assert machine.after(1.0, shutdown) == to_all(signal.SIGKILL, [0])
    assert machine.after(60.0, shutdown) == []
    assert capfd.readouterr().err == ""


def test_second_termination_request_kills_the_workers_at_once(monkeypatch):
    machine, shutdown = Machine(monkeypatch), Shutdown()
    shutdown.end_on_request(signal.SIGTERM, GRACE, machine.workers)
    assert machine.sent == to_all(signal.SIGTERM, range(4))
    assert shutdown.has_signalled
    assert machine.after(GRACE / 2, shutdown) == []
    machine.workers[0].code = 0
    assert machine.after(GRACE / 2 - 0.5, shutdown) == []
    assert machine.after(1.0, shutdown) == to_all(signal.SIGKILL, [1, 2, 3]), "they got SIGTERM before"
    machine.sent.clear()
    shutdown.end_on_request(signal.SIGTERM, GRACE, machine.workers)
    assert machine.sent == to_all(signal.SIGKILL, [1, 2, 3])
    assert shutdown.code == 143
    shutdown = Shutdown()
    shutdown.end_on_request(signal.SIGINT, GRACE, machine.workers)
    assert (shutdown.code, shutdown.has_signalled) == (130, True)


def test_worker_that_survives_sigkill_is_given_up_once(monkeypatch):
    machine, shutdown, evicted = Machine(monkeypatch), Shutdown(), []
    monkeypatch.setattr(Child, "give_up", lambda child: evicted.append(child.rank))
    shutdown.end_on_request(signal.SIGTERM, GRACE, machine.workers)
    machine.after(GRACE + 0.5, shutdown)
    machine.workers[0].code = -signal.SIGTERM
    machine.after(ANSWER_SECONDS - 1.0, shutdown)
    assert not evicted
    machine.after(60.0, shutdown)
    assert evicted == [1, 2, 3]


def test_end_of_the_group_generator_ends_the_run_and_is_named(monkeypatch, capfd):
    """Without it every worker would wait for its group until its timeout."""
    machine, shutdown = Machine(monkeypatch, most=1), Shutdown()
    monkeypatch.setattr(Child, "reap", lambda _: False)

    def look():
        machine.now += 0.1
        return supervision._collect(machine.workers, None, shutdown, GRACE, machine.outlet, rule=machine.rule)

    assert look()
    assert machine.sent == []
    monkeypatch.setattr(GeneratorElsewhere, "failure", "the group generator ended with exit code 1")
    assert all(look() for _ in range(15))
    assert machine.sent == to_all(signal.SIGTERM, range(4))
    ends = "partreduce: the group generator ended with exit code 1, so the run ends: SIGTERM to workers 0, 1, 2, 3\n"
    assert capfd.readouterr().err == ends
    assert shutdown.code == UnavailableError.exit_code


@pytest.mark.parametrize("seed", range(40))
def test_tolerant_run_ends_at_errors_and_at_one_failure_too_many(monkeypatch, seed):
    """Workers end in any order, each by success, an error, a signal or an eviction."""
    draw = random.Random(seed)
    most = draw.choice([None, 0, 1, 2, 3])
    patient = most is None and draw.random() < 0.5
    machine, shutdown = Machine(monkeypatch, most=most, patient=patient), Shutdown()
    lost = (-signal.SIGKILL, EvictedError.exit_code)
    codes = {rank: draw.choice([0, 1, *lost]) for rank in draw.sample(range(4), 4)}
    first, hurried, ended = 0, False, []
    for rank, code in codes.items():
        machine.ends(shutdown, rank, code)
        ended.append(code)
        is_lost = code in lost
        counts = code and not (is_lost and most is not None and sum(one in lost for one in ended) <= most)
        if counts:
            first = first or shell_exit_code(code)
            hurried |= not (patient and is_lost)
        assert shutdown.code == first, (codes, ended)
        assert (shutdown.deadline < float("inf")) == hurried, (codes, ended)


# Errors in the output: the same error of all workers is shown once, and other lines pass through.


ERROR = "InputError: schedule 'x': is for 3 workers"


@pytest.fixture(autouse=True)
def hold_errors_longer(monkeypatch):
    """A slow machine does not split one error into two lines."""
    monkeypatch.setattr(log_multiplexer, "ALIKE_SECONDS", 60.0)


def output_of(lines, num_workers):
    output = io.StringIO()
    deduplicator = ErrorDeduplicator(LogMultiplexer(output), num_workers)
    passed = [not deduplicator.hold(rank, line) for rank, line in lines]
    deduplicator.show()
    early = output.getvalue()
    deduplicator.show(everything=True)
    return passed, early, output.getvalue()


def test_error_of_all_workers_is_shown_immediately_and_once():
    assert output_of([(rank, ERROR) for rank in (2, 0, 1)], 3) == (
        [False] * 3,
        f"[0-2] {ERROR}\n",
        f"[0-2] {ERROR}\n",
    )


@pytest.mark.parametrize(("ranks", "words"), [((5,), "5"), ((1, 0, 4, 6, 7, 5), "0-1,4-7"), ((3, 3, 1), "1,3")])
def test_error_of_some_workers_is_shown_later_with_their_ranks(ranks, words):
    passed, early, late = output_of([(rank, ERROR) for rank in ranks], 9)
    assert (any(passed), early, late) == (False, "", f"[{words}] {ERROR}\n")


def test_different_errors_stay_separate_and_other_lines_pass():
    other = ERROR.replace("3", "4")
    passed, _, late = output_of([(0, ERROR), (1, other), (1, "PeerFailedError: x"), (0, "  InputError: indented")], 2)
    assert passed == [False, False, True, True]
    assert late == f"[0] {ERROR}\n[1] {other}\n"
