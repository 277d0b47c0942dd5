"""The one table of what continues and what restarts: each line of it is held by a schedule, proved, checked or run."""

import json
from fractions import Fraction

import pytest

from helpers.warm import WARM
from partreduce.runtime.elastic.support import elastic_blocker
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.failure_plan import BY_NAME, AfterFailure, FailurePlan, SurvivorRule, table
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    DelayedAveraging,
    DelayedMerge,
    DynamicGroups,
    GradientBuckets,
    GroupPhases,
    NeighborAveraging,
    OuterParams,
    OuterStep,
    Pairwise,
    Payload,
    Pipeline,
    Server,
    StaticGroups,
    Transport,
)
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.payload import TablePlacement
from partreduce.verify import checker
from partreduce.verify.base import Status
from partreduce.verify.prove import prove

WORKERS = 4
PHASES = GroupPhases((Phase.from_groups(WORKERS, [(0, 1), (2, 3)]), Phase.from_groups(WORKERS, [range(WORKERS)])))
RING = Round.from_edges(WORKERS, [(i, (i + 1) % WORKERS, Fraction(1, 2)) for i in range(WORKERS)])
LAYERS = Transport(gradient_buckets=GradientBuckets.PER_LAYER)
OUTER = OuterStep(lr=0.75, momentum=0.5, nesterov=True)
OWN = OuterStep(lr=0.75, momentum=0.25, outer_params=OuterParams.PER_WORKER)
INT8 = Transport(codec=Codec.INT8, block=16)
BY_STEPS = {"steps_per_round": (1, 2, 1, 2), "averaging": Averaging.STEP_NORMALIZED}
HALVES = (("weight0",), ("weight1",))

CONTINUING = {
    "allreduce of gradients": [AllReduce()],
    "allreduce of parameters": [AllReduce(steps_per_round=2)],
    "static": [StaticGroups(phases=PHASES)],
    "unequal steps per round": [AllReduce(**BY_STEPS), StaticGroups(phases=PHASES, **BY_STEPS)],
    "sync.pipeline": [AllReduce(sync=Pipeline()), AllReduce(sync=Pipeline(width=3))],
    "sync.delay": [
        AllReduce(sync=DelayedAveraging()),
        AllReduce(sync=DelayedAveraging(), steps_per_round=2, averaging=Averaging.STEP_NORMALIZED),
        StaticGroups(phases=PHASES, sync=DelayedAveraging()),
    ],
    "sync.merge": [AllReduce(steps_per_round=3, sync=DelayedMerge(steps=2, alpha=part)) for part in (0, 0.5)],
    "transport.codec": [
        AllReduce(transport=Transport(codec=Codec.INT8, error_feedback=True)),
        StaticGroups(phases=PHASES, sync=DelayedAveraging(), transport=INT8),
    ],
    "payload.outer": [
        AllReduce(payload=Payload(outer=OUTER)),
        StaticGroups(phases=PHASES, payload=Payload(outer=OUTER)),
    ],
    "payload.fragments": [AllReduce(steps_per_round=2, payload=Payload(outer=OUTER, fragments=HALVES))],
    "gradient_buckets per_layer": [AllReduce(transport=LAYERS)],
}
UNPLANNED = {
    "failure plan for outer parameters per worker": StaticGroups(phases=PHASES, payload=Payload(outer=OWN)),
}
STOPPED = {
    "neighbor with sync.iteration_gap": NeighborAveraging(rounds=(RING,), sync=IterationGap(max_ig=2)),
    "neighbor": NeighborAveraging(rounds=(RING,)),
    "pairwise": Pairwise(active=(0, 2)),
    "server": Server(hosts=(1,)),
    "failure plan for dynamic_groups": DynamicGroups(group_size=2),
    "sync.partial": AllReduce(sync=PartialAllReduce(quorum=3)),
    "payload.tables": AllReduce(payload=Payload(tables=(TablePlacement(parameter="table.weight", rows=9, columns=2),))),
    "per_layer in a pipeline": AllReduce(sync=Pipeline(), transport=LAYERS),
    "sync.delay with averaging by steps": AllReduce(sync=DelayedAveraging(), **BY_STEPS),
}


def schedule_of(strategy, plan=None):
    return Schedule("a schedule", Cluster.regular(2, WORKERS // 2), strategy, failure_plan=plan)


def test_every_line_of_the_table_is_held_here_or_is_the_run_s():
    of_runs = {"sharded replicas", "a second DistributedOptimizer", "groups of NCCL"}
    assert {name for name, _, _ in table()} == {*CONTINUING, *STOPPED, *UNPLANNED, *of_runs, "dynamic_groups"}
    assert all(BY_NAME[name].answer is AfterFailure.CONTINUES for name in CONTINUING)
    assert not any(BY_NAME[name].answer is AfterFailure.CONTINUES for name in STOPPED)


@pytest.mark.parametrize("strategy", [one for several in [*CONTINUING.values(), UNPLANNED.values()] for one in several])
def test_what_the_table_says_continues_is_not_refused(strategy):
    assert not elastic_blocker(schedule_of(strategy))


@pytest.mark.parametrize("strategy", [one for several in CONTINUING.values() for one in several])
def test_what_continues_has_a_failure_plan_that_is_proved_and_confirmed(strategy):
    rule = SurvivorRule.KEEP_GROUPS if isinstance(strategy, StaticGroups) else SurvivorRule.ALL_REDUCE
    schedule = schedule_of(strategy, FailurePlan(rule, 1))
    proof = prove(schedule)
    assert proof.verdict is Status.PROVED
    document, certificate = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), proof.certificate))
    assert "survives" in checker.check(certificate, checker.read_schedule(document))


@pytest.mark.parametrize("name", STOPPED)
def test_what_does_not_continue_is_refused_for_the_reason_in_the_table_by_plans_and_by_the_checker(name):
    case, schedule = BY_NAME[name], schedule_of(STOPPED[name])
    assert elastic_blocker(schedule) == f"strategy.{case.place}: {case.is_}; {case.words}"
    with pytest.raises(ScheduleError, match=f"^strategy.{case.place}: "):
        schedule_of(STOPPED[name], FailurePlan(SurvivorRule.ALL_REDUCE, 1))
    document = json.loads(json.dumps(dump_schedule(schedule))) | {"failure_plan": {"rule": "all_reduce", "failures": 1}}
    with pytest.raises(checker.Refusal, match=r"failure_plan|strategy"):
        checker.read_schedule(document)


@pytest.mark.parametrize("name", UNPLANNED)
def test_what_no_failure_plan_is_proved_for_is_refused_by_plans_and_by_the_checker(name):
    case = BY_NAME[name]
    with pytest.raises(ScheduleError) as refused:
        schedule_of(UNPLANNED[name], FailurePlan(SurvivorRule.ALL_REDUCE, 1))
    assert str(refused.value) == f"strategy.{case.place}: {case.is_}; {case.words}"
    document = json.loads(json.dumps(dump_schedule(schedule_of(UNPLANNED[name]))))
    with pytest.raises(checker.Refusal, match="failure_plan"):
        checker.read_schedule(document | {"failure_plan": {"rule": "all_reduce", "failures": 1}})


def test_outer_steps_that_survivors_would_not_agree_after_restart():
    """In pairs the rate is small enough; where all average together it is not."""
    outer = OuterStep(lr=Fraction(21, 10), momentum=Fraction(0), outer_params=OuterParams.PER_WORKER)
    assert "do not come to agree" in elastic_blocker(
        schedule_of(StaticGroups(phases=PHASES, payload=Payload(outer=outer)))
    )


# What restarts does, from its last checkpoint.

SCRIPT = """
import os, pathlib, signal, sys
import torch
from partreduce import DistributedOptimizer, load_checkpoint, load_schedule, save_checkpoint

schedule, folder = load_schedule(sys.argv[1]), pathlib.Path(sys.argv[2])
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = torch.nn.ModuleDict({"table": torch.nn.Embedding(9, 2), "line": torch.nn.Linear(2, 1)})
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model, schedule, timeout=60.0)
load_checkpoint(optimizer, folder)
(folder / f"begun-{attempt}-{rank}").write_text(str(optimizer.round))
saved = optimizer.round
while optimizer.round < 12:
    if (attempt, rank) == (0, 1) and optimizer.round >= 6:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model["line"](model["table"](torch.tensor([rank, 8]))).sum().backward()
    optimizer.step()
    if optimizer.round >= saved + 4:
        saved += 4
        save_checkpoint(optimizer, folder)
optimizer.finish()
(folder / f"finished-{rank}").touch()
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in STOPPED if BY_NAME[name].answer is AfterFailure.RESTARTS])
def test_what_restarts_continues_on_all_workers_from_the_last_checkpoint(name, tmp_path):
    write_schedule(tmp_path / "schedule.json", schedule_of(STOPPED[name]))
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "saved").mkdir()
    options = ["--schedule", "schedule.json", "--threads", "1", "--max-restarts", "1"]
    done = WARM.run("partreduce", "run", *options, "script.py", "schedule.json", "saved", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "saved").glob("finished-*"))) == WORKERS
    begun = {int(path.read_text()) for path in (tmp_path / "saved").glob("begun-1-*")}
    assert min(begun) >= 4, done.stderr
    assert len(begun) == 1, done.stderr
