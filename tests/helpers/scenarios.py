"""The scenarios of real worker processes in tests, and the driver that forks them.

`python -m helpers.scenarios` reads names of scenarios from standard input and answers each with one line of JSON: the
launcher's exit code, the workers' output, seconds. torch is imported once; every scenario forks new workers.
"""

# ruff: noqa: T201 - its output is what the tests read
import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from functools import partial
from typing import ClassVar

import torch

from benchmarks.faults.processes import children_of, runs
from helpers import training
from helpers.conformance.cells import Cell, drive, problem_of, run_reference
from helpers.conformance.draws import groups
from helpers.gap_runs import until_left_behind
from partreduce import (
    Cluster,
    DistributedOptimizer,
    PartreduceError,
    Schedule,
    load_checkpoint,
    p_reduce,
    save_checkpoint,
)
from partreduce import strategies as st
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.transport import updates
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.rendezvous import connect_store
from partreduce.runtime.transport.torch_api import PrefixStore
from partreduce.topo.strategies.axes import RING

wrapped = partial(training.wrap, None)
"""Return the wrapped optimizer of a model in this process, under a schedule, in the world of its run."""
IN_EIGHT_BITS = st.Transport(codec=st.Codec.INT8)


def rank():
    return int(os.environ["RANK"])


def size():
    return int(os.environ["WORLD_SIZE"])


def pairs(name="pairs", **options):
    phases = tuple(st.Phase.from_groups(4, groups) for groups in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    return Schedule(name, Cluster.regular(1, 4), st.StaticGroups(phases=st.GroupPhases(phases), **options))


def everyone(steps_per_round=1, *, num_nodes=1, **options):
    return Schedule(
        "everyone",
        Cluster.regular(num_nodes, size() // num_nodes),
        st.AllReduce(steps_per_round=steps_per_round, **options),
    )


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batches(count):
    generator = torch.Generator().manual_seed(100 + rank())
    for _ in range(count):
        x = torch.randn(16, 4, generator=generator)
        yield x, x.sum(1, keepdim=True).sin()


def train(optimizer, model, count, hook=lambda step: None, before_step=lambda: None):
    losses = []
    for step, (x, y) in enumerate(batches(count)):
        hook(step)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def report(**facts):
    print("REPORT " + json.dumps({"rank": rank(), **facts}), flush=True)


def wait_for_the_others(launcher):
    """Wait until the launcher has one worker left, and its guardian."""
    while sum(map(runs, children_of(launcher))) > 2:
        time.sleep(0.02)


def stop_until_alone():
    """Stop this process; when all others have ended, a forked child kills it, so that the launcher can end."""
    me, launcher = os.getpid(), os.getppid()
    if os.fork() == 0:
        wait_for_the_others(launcher)
        os.kill(me, signal.SIGKILL)
        os._exit(0)
    os.kill(me, signal.SIGSTOP)


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # equal in all processes of a machine


def reporting(action):
    """Run an action and report how, when and after how long it ended; then exit with the error's exit code."""
    start = now()
    try:
        action()
    except PartreduceError as error:
        report(error=type(error).__name__, text=str(error), seconds=now() - start, at=now())
        raise SystemExit(error.exit_code) from None
    report(error=None, seconds=now() - start, at=now())


def drawn_schedules_on_processes():
    store = connect_store(timedelta(seconds=60))
    base, count = int(os.environ["CASES_FROM"]), int(os.environ["CASES"])
    worlds, problems, run = {}, [], 0
    for seed in range(base, base + count):
        case = replace(groups(seed), reopens=(), dtype=torch.float64)
        n = case.workers
        if rank() >= n:
            continue
        if n not in worlds:
            prefixed = PrefixStore(f"world of {n}", store)
            worlds[n] = GlooWorld(prefixed, rank(), n, timedelta(seconds=60), max_groups=1000)
        notes = drive(case.loop, Cell(case, rank(), world=worlds[n]), None)
        problem = problem_of(notes, run_reference(case.loop, case)[rank()])
        problems += [f"{problem} in {case}"] if problem else []
        run += 1
    report(problems=problems, run=run)


def same_losses_as_ddp():
    """Train three optimizers with DDP and with all-reduce in every step, and report both loss curves."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    makers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "clipped": lambda p: torch.optim.SGD(p, lr=0.1),
    }

    def clip(name, model, optimizer=None):
        if name == "clipped":
            if optimizer is not None:
                optimizer.average_gradients()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    for name, make in makers.items():
        plain = network()
        ddp = torch.nn.parallel.DistributedDataParallel(plain)
        theirs = train(make(ddp.parameters()), ddp, 20, before_step=lambda n=name, m=plain: clip(n, m))
        model = network()
        optimizer = DistributedOptimizer(make(model.parameters()), model, everyone(), timeout=60)
        ours = train(optimizer, model, 20, before_step=lambda n=name, m=model, o=optimizer: clip(n, m, o))
        difference = (weights(model) - weights(plain)).abs().max().item()
        report(name=name, theirs=theirs, ours=ours, difference=difference)
    dist.destroy_process_group()


def unused_parameter():
    """Train with a parameter that has no gradient on some or all workers."""
    model = torch.nn.ParameterDict(
        {"some": torch.nn.Parameter(torch.ones(2)), "never": torch.nn.Parameter(torch.ones(2))}
    )
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5), model, everyone(), timeout=60)
    if rank() == 0:
        model["some"].grad = torch.full((2,), 4.0)
    optimizer.step()
    report(
        some=model["some"].tolist(),
        never=model["never"].tolist(),
        grad=model["some"].grad.tolist(),
        never_grad=model["never"].grad is not None,
    )


def begin_as_others(what):
    """Begin with another number of workers on worker 2, or without worker 2."""
    if rank() == 2 and what == "missing":
        wait_for_the_others(os.getppid())
        return
    if rank() == 2:
        os.environ["WORLD_SIZE"] = "3"
    reporting(lambda: wrapped(network(), pairs(), timeout=6 if what == "missing" else 20))


def kill_worker_3(when):
    """Kill worker 3; the others must report it and hold no partial sums."""
    torch.manual_seed(0)
    long = when.startswith("in mid-operation")
    in_levels, coded = when.endswith("hierarchical"), when.endswith("coded")
    model = torch.nn.Linear(1000, 2000 if long else 2)
    optimizer = wrapped(
        model,
        everyone(2, num_nodes=2 if in_levels else 1, transport=IN_EIGHT_BITS if coded else RING) if long else pairs(),
        lr=1.0 if coded else 0.0,
        initial="broadcast" if coded else "keep",
        algorithm="hierarchical" if in_levels else "ring",
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.0 if coded else float(rank() + 1))

    def loop():
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, -float(rank() + 1) if coded else 0.0)
        for step in range(100_000):
            if rank() == 3 and long and step == 4:  # the start is over for all, and two means
                threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            if rank() == 3 and when == "between operations" and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                optimizer.step()
            except PartreduceError:
                held = {"values": weights(model)}
                if coded:
                    array = optimizer.runner.parts[0].reference.arrays[0].values
                    held["reference"] = torch.cat([slot.view(array).flatten() for slot in optimizer.run.flat.slots()])
                facts = {name: tensor.unique().tolist() for name, tensor in held.items()}
                facts["steps"] = optimizer.steps
                report(**facts)
                raise

    reporting(loop)


def lost_from_generated(when):
    """Let worker 3 fail under `dynamic_groups`; the others train to the end without it."""
    model = torch.nn.Linear(1000, 1000 if when == "in mid-operation" else 10)
    schedule = Schedule("g", Cluster.regular(1, 4), st.DynamicGroups(group_size=3, slow_threshold=None))
    optimizer = wrapped(model, schedule, lr=0.0, initial="keep")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(rank() + 1))
            parameter.grad = torch.zeros_like(parameter)
    client, store = optimizer.runner.client, optimizer.run.reducer.world.store

    heartbeat = optimizer.run.reducer.heartbeat

    class Dying(type(heartbeat)):
        """A heartbeat with which the worker dies inside an average, a moment after it enters one, past step 4."""

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "now" and optimizer.steps > 4 and self.last[0].startswith("entered the average"):
                threading.Timer(0.002, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    if rank() == 3 and when == "in mid-operation":
        heartbeat.__class__ = Dying

    def loop():
        for step in range(100_000 if rank() == 3 else 60):
            if rank() == 3 and when == "stopped" and step == 5:
                store.set("pid", str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.step()
            if step == 50:
                with optimizer.mean_model():
                    report(mean=sorted(set(weights(model).tolist())))
            time.sleep(0.002)
        optimizer.finish()
        report(values=sorted(set(weights(model).tolist())), executed=client.executed)
        if when == "stopped" and rank() == 0:
            os.kill(int(store.get("pid").decode()), signal.SIGCONT)

    reporting(loop)


def exception():
    model = network()
    optimizer = wrapped(model, pairs())

    def hook(step):
        if rank() == 1 and step == 4:
            raise ValueError("a bug in the data loader")

    reporting(lambda: train(optimizer, model, 50, hook))


def grow_a_buffer():
    """Let a buffer grow on one worker, whose script handles the error and exits."""
    model = network()
    model.register_buffer("seen", torch.zeros(6))
    optimizer = wrapped(model, pairs())

    def hook(step):
        if rank() == 1 and step == 4:
            model.seen = torch.zeros(7)

    reporting(lambda: train(optimizer, model, 50, hook))


def unequal():
    """Train with 6 + 2 w batches on worker w."""
    model = network()
    optimizer = wrapped(model, pairs())
    reporting(lambda: train(optimizer, model, 6 + 2 * rank()) and optimizer.finish())


def primitive():
    """Call p_reduce on overlapping groups with several dtypes and strided tensors, then with different shapes."""
    a = torch.full((5,), float(rank()))
    b = torch.full((3, 2), 2.0 * rank(), dtype=torch.float64).t()
    c = torch.full((3,), float(rank()), dtype=torch.bfloat16)
    p_reduce([a, b, c], [0, 1] if rank() < 2 else [2, 3], timeout=60)
    report(a=a.tolist(), b=b.tolist(), c=c.tolist())
    p_reduce(a, {0, 1, 2, 3}, relaxation=0.5, timeout=60)
    report(relaxed=a.tolist())
    if rank() == 3:
        a = a.repeat(2)
    before = a.clone()

    def differ():
        try:
            p_reduce(a, {0, 1, 2, 3}, timeout=60)
        finally:
            report(unchanged=bool((a == before).all()))

    reporting(differ)


def environment():
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "OMP_NUM_THREADS"]
    report(**{name: os.environ[name] for name in names}, threads=torch.get_num_threads())


def write_traces():
    model = network()
    optimizer = wrapped(model, pairs(), trace=os.environ["TRACE"])
    train(optimizer, model, 4)
    optimizer.finish()


def neighbors(gap, steps_per_round=1):
    """Return a schedule on a ring of four workers, which keep half of their own values."""
    edges = [(v, (v + step) % 4, Fraction(1, 4)) for v in range(4) for step in (1, 3)]
    return Schedule(
        "gap",
        Cluster.regular(1, 4),
        st.NeighborAveraging(rounds=(st.Round.from_edges(4, edges),), sync=gap, steps_per_round=steps_per_round),
    )


def constant(schedule, size=13, **options):
    """Return a model of 52 kB, sent in two parts, whose numbers begin at the rank and grow by rank + 1 in each step."""
    updates.PART_BYTES = 40_000
    model = torch.nn.Linear(1000, size, bias=False)
    optimizer = wrapped(model, schedule, lr=1.0, initial="keep", **options)
    with torch.no_grad():
        model.weight.fill_(rank())
    model.weight.grad = torch.full_like(model.weight, -float(rank() + 1))
    return model, optimizer


def gap():
    """Run a parallel iteration gap with known results, then most settings at once with one worker left behind."""
    model, optimizer = constant(neighbors(st.IterationGap(update_order=st.UpdateOrder.DPSGD, max_ig=2)))
    for _ in range(4):
        optimizer.step()
    values = weights(model).unique().tolist()
    optimizer.finish()
    report(values=values, mean=weights(model).unique().tolist())
    setting = st.IterationGap(
        max_ig=4, staleness=1, backup=1, skip=st.SkipPolicy(limit=10), weights=st.EdgeWeighting.ITERATION
    )
    model, optimizer = constant(neighbors(setting), 1, trace=os.environ["TRACE"])
    taken = 0
    for batch in optimizer.batches(range(20)):
        if rank() == 2 and batch == 5:
            until_left_behind(optimizer.runner)
        optimizer.step()
        taken += 1
    steps, skipped = optimizer.steps, optimizer.skipped
    sent = sum(one.sent.num_bytes for one in optimizer.runner.mailboxes[0].traffic().values())
    optimizer.finish()
    report(taken=taken, steps=steps, skipped=skipped, sent=sent, own=weights(model).unique().tolist())


ALONE = {
    "gradients": st.AllReduce,
    "parameters": lambda: st.AllReduce(steps_per_round=4),
    "in 8 bits": lambda: st.AllReduce(steps_per_round=4, transport=IN_EIGHT_BITS),
    "late": lambda: st.AllReduce(steps_per_round=4, sync=st.DelayedAveraging()),
    "gap": lambda: st.NeighborAveraging(
        rounds=(st.Round.from_edges(2, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]),),
        sync=st.IterationGap(max_ig=2),
    ),
}


def alone(strategy, place, count=12):
    """Let worker 0 alone call `place` after `count` steps, as under `if rank == 0:`; worker 1 continues to train."""
    model = network()
    schedule = Schedule("alone", Cluster.regular(1, 2), strategy)
    optimizer = wrapped(model, schedule)
    folder = os.environ["FOLDER"]

    def come(step):
        if step == count and rank() == 0:
            if place == "save_checkpoint()":
                save_checkpoint(optimizer, folder)
            elif place == "load_checkpoint()":
                load_checkpoint(optimizer, folder)
            elif place == "load_state_dict()":
                optimizer.load_state_dict(optimizer.state_dict())
            elif place == "mean_model()":
                with optimizer.mean_model():
                    pass
            else:
                optimizer.finish()

    reporting(lambda: train(optimizer, model, 3 * count, hook=come) and optimizer.finish())


SCENARIOS = {
    "gap": (4, gap),
    "drawn schedules": (6, drawn_schedules_on_processes),
    "same losses as DDP": (2, same_losses_as_ddp),
    "unused parameter": (2, unused_parameter),
    **{what: (4, lambda what=what: begin_as_others(what)) for what in ("another size", "missing")},
    **{f"killed {w}": (4, lambda w=w: kill_worker_3(w)) for w in ("between operations", "in mid-operation",
        "in mid-operation, hierarchical", "in mid-operation, coded")},
    "exception": (4, exception),
    "refused": (4, grow_a_buffer),
    **{f"generated, {w}": (4, lambda w=w: lost_from_generated(w)) for w in ("in mid-operation", "stopped")},
    "unequal, not joined": (4, unequal),
    "primitive": (4, primitive),
    "environment": (4, environment),
    "traced": (4, write_traces),
    **{f"alone in {place} {kind}": (2, lambda make=make, place=place: alone(make(), place))
        for place in ("save_checkpoint()", "load_checkpoint()", "load_state_dict()", "mean_model()", "finish()")
        for kind, make in ALONE.items()},
}  # fmt: skip


class GeneratorElsewhere:
    """A generator that the launcher did not start, which notices failures only by its lease."""

    environment: ClassVar[dict[str, str]] = {}
    failure = None

    def failed(self, rank): ...

    def evicted(self):
        return ()


def launch_scenario(scenarios, request):
    """Fork the workers of a scenario by the launcher; return exit code, output and seconds."""
    num_workers, function = scenarios[request["name"]]
    output, start = io.StringIO(), time.monotonic()
    code = launch(
        function,
        num_workers=num_workers,
        num_nodes=request.get("nodes", 1),
        output=output,
        environment=request.get("environment", {}),
        grace=request.get("grace", 60.0),
        patient=request.get("patient", False),
        generator=(lambda *_: contextlib.nullcontext(GeneratorElsewhere())) if request.get("survive", False) else None,
        max_failures=num_workers - 1 if request.get("survive", False) else 0,
    )
    return {"code": code, "output": output.getvalue(), "seconds": time.monotonic() - start}


def main(answer):
    """Answer requests from standard input by a function, or by launching scenarios of a dictionary."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(launch_scenario(answer, request) if isinstance(answer, dict) else answer(request)), flush=True)


if __name__ == "__main__":
    main(SCENARIOS)
