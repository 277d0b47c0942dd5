"""Runs over hosts that go on after losses: what survivors hold is what a replay by hand says, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from helpers.elastic_runs import replayed
from helpers.host_runs import LIMIT, Begun, wait_until
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import EvictedError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

pytestmark = [pytest.mark.lab, pytest.mark.processes, pytest.mark.timeout(4 * LIMIT)]

ALL, THREE, TWO = (0, 1, 2, 3), (0, 1, 2), (0, 1)
STEPS = 9
ROUND = 5
"""In which worker 3 says that it is under way, before its sum, and something happens to it."""
TRAIN = f"""
import json, os, signal, sys, time, torch, partreduce
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from helpers.elastic_runs import RATE, ask_when_awaited, gradient, start_of, wait_for
rank, steps_per_round, timeout, happens = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
back, restarted = [int(one) for one in sys.argv[4:]], "PARTREDUCE_RESTARTED" in os.environ
if restarted:
    ask_when_awaited()
model = torch.nn.Module()
model.weight = torch.nn.Parameter(torch.tensor(start_of(3), dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), RATE)
optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ["PARTREDUCE_SCHEDULE"], timeout=timeout)
for step in optimizer.batches(range({STEPS} * steps_per_round)):
    if back and step >= {STEPS} - 1:
        wait_for(optimizer, back)
    if rank == 3 and step == {ROUND} * steps_per_round and not restarted:
        print("under way as", os.getpid(), flush=True)
        if happens in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, happens))
        while happens == "waits" and not os.path.exists("go"):
            time.sleep(0.01)
    optimizer.zero_grad()
    (model.weight * torch.tensor(gradient(rank, step), dtype=torch.float64)).sum().backward()
    optimizer.step()
own = model.weight.tolist()
optimizer.finish()
print("REPORT", json.dumps([rank, own, model.weight.tolist()]))
"""


def begun(hosts, folder, happens, *, steps_per_round=1, timeout=60.0, survive=2, options=(), back=()):
    schedule = folder / "all.json"
    options = ("--tolerate-failures", survive, *options)
    write_schedule(schedule, Schedule("goes on", Cluster.regular(2, 2), AllReduce(steps_per_round=steps_per_round)))
    return Begun(hosts, folder, TRAIN, schedule, steps_per_round, timeout, happens, *back, options=options)


def held(output):
    """What workers held before and after their last mean, by rank."""
    reports = [json.loads(line.split("REPORT ", 1)[1]) for line in output.splitlines() if "REPORT " in line]
    return {rank: own for rank, own, _ in reports}, {rank: end for rank, _, end in reports}


def without_others(survivors, *, steps_per_round=1):
    """What survivors must hold: all were in the rounds before the loss, and they alone from then on."""
    return replayed(
        lambda this: [ALL if this < ROUND else survivors],
        survivors,
        steps_per_round=steps_per_round,
        steps=STEPS * steps_per_round,
    )


def check(run, hosts, survivors, code, *said, steps_per_round=1, unheard=()):
    """How a run ended, what is held, but by those whose host says nothing any more, and that nothing is left of it."""
    returned, output, errors = run.ended()
    assert returned == code, errors
    own, end = held(output)
    expected = without_others(survivors, steps_per_round=steps_per_round)
    assert own.keys() == expected.keys() - unheard, errors
    for rank, model in own.items():
        assert model == (expected[rank] if steps_per_round == 1 else pytest.approx(expected[rank], rel=1e-14)), errors
    assert len({tuple(model) for model in end.values()}) == 1, "they ended alike"
    for text in said:
        assert text in errors
    nothing_is_left(hosts)


def nothing_is_left(hosts):
    for place in ("a", "b"):
        wait_until(lambda: not hosts.processes(place))  # noqa: B023 - called here
    wait_until(lambda: not hosts.clients())


@pytest.mark.parametrize("steps_per_round", [1, 2])
def test_a_worker_of_another_host_is_killed(hosts, tmp_path, steps_per_round):
    run = begun(hosts, tmp_path, "SIGKILL", steps_per_round=steps_per_round)
    moved = (
        "their models are equal" if steps_per_round == 1 else "the mean moved by 1/3 of how far that model was from it"
    )
    killed, on = "worker 3 was killed by signal 9", "without worker 3 the other 3 continue together from round 5; "
    check(run, hosts, THREE, 0, killed, on + moved, steps_per_round=steps_per_round)


def test_a_stopped_worker_of_another_host_is_given_up_and_its_agent_ends_it(hosts, tmp_path):
    run = begun(hosts, tmp_path, "SIGSTOP", timeout=10.0)
    check(run, hosts, THREE, EvictedError.exit_code, "worker 3 said nothing for 10 s and was given up")


def test_a_stopped_worker_whose_agent_is_stopped_too_is_given_up_with_its_host(hosts, tmp_path):
    run = begun(hosts, tmp_path, "waits", timeout=10.0)
    worker, agent = run.under_way(), hosts.agent("b")
    for pid in (agent, worker):
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "host b does not answer" in run.errors, lambda: run.errors)
    os.kill(agent, signal.SIGCONT)
    check(run, hosts, THREE, EvictedError.exit_code, "worker 3 said nothing for 10 s and was given up", unheard={2})


def test_a_host_that_is_cut_off_is_lost_with_its_workers_which_end_by_themselves(hosts, tmp_path):
    run = begun(hosts, tmp_path, "waits")
    run.under_way()
    hosts.cut_off("b")
    (tmp_path / "go").touch()  # so that both workers there go into a sum
    on = "without worker 2 and worker 3 the other 2 continue together from round 5"
    check(run, hosts, TWO, 0, "worker 2 was lost with host b (", "worker 3 was lost with host b (", on)


def test_a_host_whose_connection_ends_although_it_is_there(hosts, tmp_path):
    """Its workers live on for a moment, and all that they say is heard; but they are in no sum any more."""
    run = begun(hosts, tmp_path, "waits")
    run.under_way()
    for pid in hosts.servers("b"):
        os.kill(pid, signal.SIGKILL)
    on = "without worker 2 and worker 3 the other 2 continue together from round 5"
    check(run, hosts, TWO, 0, "worker 3 was lost with host b (", on)


def test_workers_behind_a_cut_that_is_mended_late_are_members_no_more(hosts, tmp_path):
    """They were given up before their host was: when they can be heard again, the others go on without them."""
    run = begun(hosts, tmp_path, "waits", timeout=6.0)
    run.under_way()
    hosts.cut_off("b")
    (tmp_path / "go").touch()
    wait_until(lambda: "worker 3 said nothing for 6 s and was given up" in run.errors, lambda: run.errors)
    hosts.connect_again("b")
    check(run, hosts, TWO, EvictedError.exit_code, "without worker 2 and worker 3 the other 2 continue together")


def test_a_worker_of_another_host_is_started_again_there_and_joins(hosts, tmp_path):
    run = begun(hosts, tmp_path, "SIGKILL", options=("--max-restarts", 1), back=(3,))
    returned, output, errors = run.ended()
    assert returned == 0, errors
    joined = int(re.search(r"worker 3 joined in round (\d+) with the state of worker 0", errors)[1])

    def members(this):
        return [THREE if ROUND <= this < joined else ALL]

    own, end = held(output)
    assert own == replayed(members, ALL, steps=STEPS), errors
    assert len({tuple(model) for model in end.values()}) == 1, errors
    nothing_is_left(hosts)


def test_one_loss_more_than_may_be_ends_the_run(hosts, tmp_path):
    run = begun(hosts, tmp_path, "waits", survive=1)
    run.under_way()
    for pid in hosts.servers("b"):
        os.kill(pid, signal.SIGKILL)
    returned, output, errors = run.ended()
    assert returned == 69, errors
    assert not held(output)[0]
    assert "continue" not in errors
    nothing_is_left(hosts)
