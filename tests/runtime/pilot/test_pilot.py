"""Pilots: `measure` trains a real job in real processes and writes a file for `design`, or reports why it cannot."""

import json
import os
from dataclasses import replace

import pytest

from helpers.warm import WARM
from partreduce import Cluster, Schedule
from partreduce.errors import InputError
from partreduce.runtime.pilot.job import Curve, probes, reference
from partreduce.runtime.pilot.run import check_other_start, is_harder, run_pilot
from partreduce.strategies import AllReduce, Pipeline
from partreduce.topo.document.pilot import dump_pilot, load_pilot

JOB = """
import itertools, os, torch, partreduce

rank = int(os.environ["RANK"])
steps = itertools.count()

def pilot(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    order = torch.Generator().manual_seed(100 * seed + rank)
    inputs = torch.randn(16, 6, generator=order)
    targets = inputs.sum(dim=1, keepdim=True).sin()
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=8, shuffle=True, generator=order)

    def loss(batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def step(optimizer, batch):
        next(steps)
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.average_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    return partreduce.PilotJob(model=model, optimizer=optimizer, batches=batches, loss=loss, step=step)

if rank == 0:
    import atexit
    atexit.register(lambda: open(os.environ["STEPS"], "w").write(str(next(steps))))
"""


def run(folder, *arguments):
    (folder / "job.py").write_text(JOB)
    clean = {key: value for key, value in os.environ.items() if key not in {"RANK", "WORLD_SIZE"}}
    place, output = f"{folder}/job.py:pilot", folder / "pilot.json"
    environment = clean | {"STEPS": str(folder / "steps")}
    return WARM.run("partreduce", "measure", place, "-o", output, *arguments, environment=environment)


@pytest.mark.processes
def test_a_pilot_trains_the_job_and_writes_a_file_that_loads(tmp_path):
    """Momentum, dropout and clipping; three workers, so that the ring is odd."""
    done = run(tmp_path, "--workers", "3", "--steps", "24", "--seeds", "2", "--warm-up", "3", "--json")
    assert done.returncode == 0, done.stderr
    pilot = load_pilot(tmp_path / "pilot.json")
    assert json.loads("\n".join(line.removeprefix("[0] ") for line in done.stdout.splitlines())) == dump_pilot(pilot)
    assert (pilot.num_workers, pilot.data, pilot.steps, pilot.seeds) == (3, "shuffled", 24, (0, 1))
    names = [probe.schedule for probe in pilot.probes]
    assert {"allreduce-every-8", "ring-pairs-every-4", "allreduce-late"} <= set(names)
    assert all(0.5 <= steps_ratio < 20 for probe in pilot.probes for steps_ratio in probe.steps_ratios)
    # Warm-up and steps, once per seed, under All-Reduce and each other schedule, all by the job's step function.
    assert int((tmp_path / "steps").read_text()) == (24 + 3) * 2 * (1 + len(names))


PILOT_WITH_THEN = (
    JOB.split("if rank == 0:", maxsplit=1)[0]
    + """
from partreduce.runtime.pilot.run import run_pilot
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Pipeline

shape, asked = Cluster.parse("2"), []
every, piped, unequal = AllReduce(steps_per_round=4), AllReduce(sync=Pipeline()), AllReduce(steps_per_round=(4, 2))

def then(curves):
    assert rank == 0, "only worker 0 is asked"
    asked.append(len(curves))
    if os.environ.get("REFUSE"):
        raise partreduce.errors.UndecidedError("nothing keeps the limits")
    return [Schedule("piped", shape, piped), Schedule("unequal", shape, unequal)] * (len(asked) == 1)

curves = run_pilot(pilot, steps=24, seeds=[0, 1], schedules=[Schedule("every", shape, every)], then=then)
names = [curve.schedule.name for curve in curves]
assert names == ["allreduce", "every"] * 2 + ["piped", "unequal"] * 2, names
assert asked == ([4, 8] if rank == 0 else []), asked
assert next(steps) == 2 * (3 * 24 + (24 if rank == 0 else 12)), "worker 1 takes half of the steps under `unequal`"
assert len({curve.losses[0] for curve in curves if curve.seed == 1}) == 1
print("losses", [round(curve.losses[-1], 4) for curve in curves])
"""
)


@pytest.mark.processes
def test_schedules_that_worker_0_adds_run_on_all_workers(tmp_path):
    (tmp_path / "after.py").write_text(PILOT_WITH_THEN)
    done = WARM.run("partreduce", "run", "--workers", "2", tmp_path / "after.py")
    assert done.returncode == 0, done.stderr
    losses = [line.partition("losses")[2] for line in done.stdout.splitlines() if "losses" in line]
    assert len(losses) == 2
    assert losses[0] == losses[1], "all workers get the same curves"


@pytest.mark.processes
def test_planning_error_of_worker_0_ends_the_pilot_of_all_workers(tmp_path):
    (tmp_path / "after.py").write_text(PILOT_WITH_THEN)
    done = WARM.run(
        "partreduce", "run", "--workers", "2", tmp_path / "after.py", environment=os.environ | {"REFUSE": "1"}
    )
    assert done.returncode == 65
    assert "InputError: nothing keeps the limits" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_cluster_of_another_size_is_rejected_before_any_step(tmp_path):
    (tmp_path / "cluster.yaml").write_text("num_nodes: 2\nworkers_per_node: 4\nhardware: {compute: 50ms}\n")
    done = run(tmp_path, str(tmp_path / "cluster.yaml"), "--workers", "2")
    assert done.returncode == 65
    assert "CLUSTER: has 8 workers and 2 run here" in done.stderr
    assert int((tmp_path / "steps").read_text()) == 0


def test_pipeline_is_not_ordered_with_other_probes():
    shape = Cluster.parse("2x2")
    pipeline = Schedule("pipeline", shape, AllReduce(sync=Pipeline()))
    assert not any(is_harder(one, pipeline) for one in probes(shape, steps=24, data="shuffled"))
    assert not any(is_harder(pipeline, one) for one in probes(shape, steps=24, data="shuffled"))
    assert not Curve(pipeline, 0, 1, (1.0,)).is_reference
    assert Curve(reference(shape), 0, 1, (1.0,)).is_reference


def test_job_that_differs_for_the_same_seed_is_rejected():
    schedule = reference(Cluster.parse("1x2"))
    first, noisy, other = (Curve(schedule, 3, 1, (loss, 0.5)) for loss in (2.0, 2.0001, 2.1))
    check_other_start([], first)
    check_other_start([first], noisy)
    check_other_start([first], replace(other, seed=4))
    with pytest.raises(InputError, match=r"two jobs of seed 3 start at losses 2 and 2\.1; .* from its seed alone"):
        check_other_start([first, noisy], other)


def test_probes_are_ordered_by_difficulty_and_all_reduce_is_never_harder():
    shape = Cluster.parse("2x2")
    every_4, every_8, pairs, inside, late, every_4_late, _ = probes(shape, steps=24, data="shuffled")
    assert [one.name for one in (inside, late)] == ["node-then-all", "allreduce-late"]
    assert not is_harder(every_4_late, every_4), "delayed schedules are not compared with others"
    assert is_harder(every_8, every_4)
    assert not is_harder(every_4, every_8)
    assert is_harder(pairs, every_4), "its rounds are as long"
    assert is_harder(every_4_late, late)
    assert not is_harder(late, every_4_late)
    assert is_harder(every_4, inside)
    assert not is_harder(reference(shape), inside), "all others are compared with it"


def test_function_that_makes_no_job_is_rejected():
    with pytest.raises(InputError, match=r"the function returned a NoneType; it returns a partreduce\.PilotJob"):
        run_pilot(lambda _seed: None, steps=24, seeds=[0], cluster=Cluster.parse("1x2"))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"does not take the seed; write `def NAME\(seed\):`"):
        run_pilot(lambda: None, steps=24, seeds=[0], cluster=Cluster.parse("1x2"))  # type: ignore[arg-type, misc, call-arg]
    with pytest.raises(InputError, match="has one worker"):
        run_pilot(lambda _seed: None, steps=24, seeds=[0], cluster=Cluster.parse("1x1"))  # type: ignore[arg-type, return-value]


def test_pilot_outside_a_job_names_the_launch_option(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert "--workers N: measure runs on all workers: give N here" in done.stderr
    assert "Traceback" not in done.stderr
