"""Cells: a small training job under one schedule, run by simulated ranks and compared with a run without a device."""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch

from helpers.conformance.cells import TOGETHER, Turns
from helpers.conformance.kinds import DILOCO, Kind, kinds, phases
from helpers.device.ranks import Launch, SharedState, run_ranks
from helpers.device.simulated_device import SimulatedDevice
from helpers.training import group_phases
from partreduce import DistributedOptimizer
from partreduce import strategies as st
from partreduce.runtime.averaging import neighbor_reducer, reducer
from partreduce.runtime.sharding.table import Staging, Table
from partreduce.runtime.strategies import gradient_average
from partreduce.runtime.transport import multistage_allreduce, updates
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting

RANKS = 4
MOST_STEPS = 24
PLACES = ("fill", "sum", "commit", "step", "all")
"""Operations that may be delayed: filling send arrays, sums, committing averages, optimizer steps, and all of them."""
MIXED = (torch.float32, torch.bfloat16)
KINDS = kinds(RANKS, nodes=2)


@dataclass(frozen=True)
class Cell(Kind):
    """A training job under a kind, or under one that is changed in some fields."""

    name: str = ""
    kind: str = ""
    place: str = "all"
    """Which operation `make test` delays."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    optimizer: str = "sgd"
    rounds: int = 4
    waits: bool = True
    """Whether the host may wait for the device in a step."""


def cell(kind, variant="", axes=(), **job):
    base = KINDS[kind]
    name = f"{kind}, {variant}" if variant else kind
    return Cell(replace(base.strategy, **dict(axes)), base.cluster, name=name, kind=kind, **job)


def transport_of(codec=st.Codec.NONE, **axes):
    """Return the transport of sums by a codec, in blocks shorter than the arrays if it has blocks."""
    return {"transport": st.Transport(codec=codec, **({"block": 32} if codec.has_blocks else {}), **axes)}


def relax_phases(relaxation):
    groups = [[replace(group, relaxation=Fraction(relaxation)) for group in phase] for phase in phases(RANKS).phases]
    return {"phases": group_phases(RANKS, *groups)}


LATE = {"sync": st.DelayedAveraging()}
UNEVEN: Any = {"steps_per_round": (1, 2, 1, 3), "averaging": st.Averaging.STEP_NORMALIZED}
FLOAT16, BFLOAT16, INT8 = (transport_of(codec) for codec in (st.Codec.FLOAT16, st.Codec.BFLOAT16, st.Codec.INT8))
NODES = partial(transport_of, algorithm=st.AllReduceAlgorithm.HIERARCHICAL)
BOTH_WAYS = st.Round.from_edges(RANKS, [(i, (i + d) % RANKS, Fraction(1, 3)) for i in range(RANKS) for d in (1, 3)])
HALF = st.Round.from_edges(RANKS, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2)), (2, 3, Fraction(1, 4))])
OWN = {"steps_per_round": 2, "payload": st.Payload(outer=replace(DILOCO, outer_params="per_worker"))}
THIRDS = {"sync": st.DelayedMerge(steps=3, alpha="1/2"), "payload": st.Payload(outer=DILOCO, fragments=3)}
ON_HOST = {"outer_state": "host"}
CELLS = [
    cell("allreduce", place="commit", waits=False),
    cell("allreduce", "Adam", optimizer="adam"),
    cell("allreduce", "mixed", dtypes=MIXED),
    cell("allreduce", "float16", FLOAT16, place="sum"),
    cell("allreduce", "bfloat16", BFLOAT16, place="commit", waits=False),
    cell("allreduce", "int8", INT8, rounds=2, place="sum", waits=False),
    cell("allreduce", "int4, feedback", transport_of(st.Codec.INT4, error_feedback=True)),
    cell("allreduce", "hierarchical", NODES()),
    cell("allreduce", "hierarchical, float16", NODES(st.Codec.FLOAT16)),
    cell("allreduce", "hierarchical, int8 across nodes", NODES(st.Codec.INT8, where="across-nodes"), place="commit"),
    cell("allreduce, pipeline", waits=False),
    cell("allreduce, pipeline", "mixed", dtypes=MIXED, place="sum", waits=False),
    cell("allreduce, pipeline", "of 3, Adam", {"sync": st.Pipeline(width=3)}, optimizer="adam", place="commit"),
    cell("allreduce, pipeline", "hierarchical", NODES()),
    cell("allreduce, quorum"),
    cell("allreduce, layers", place="sum"),
    cell("allreduce, every 2"),
    cell("allreduce, every 2", "bfloat16", BFLOAT16),
    cell("allreduce, every 2", "hierarchical, int8, feedback", NODES(st.Codec.INT8, error_feedback=True)),
    cell("allreduce, late"),
    cell("static"),
    cell("static", "Adam", optimizer="adam"),
    cell("static", "bfloat16", dtypes=(torch.bfloat16,)),
    cell("static", "broadcast buffers", options={"buffers": "broadcast"}),
    cell("static", "relaxed", relax_phases("3/2")),
    cell("static", "by steps", UNEVEN),
    cell("static", "float16", FLOAT16, place="commit"),
    cell("static", "hierarchical", NODES(), waits=False),
    cell("static", "late", LATE, place="fill", waits=False),
    cell("static", "late, mixed", LATE, dtypes=MIXED, place="sum"),
    cell("static", "late, local buffers", LATE, options={"buffers": "local"}),
    cell("static", "late, relaxed", {**LATE, **relax_phases("1/2")}),
    cell("static", "late, by steps", {**LATE, **UNEVEN}),
    cell("static", "late, float16", {**LATE, **FLOAT16}, place="fill", waits=False),
    cell("static", "late, int8", {**LATE, **INT8}),
    cell("static", "late, hierarchical", {**LATE, **NODES()}, place="fill", waits=False),
    cell("neighbor", axes={"rounds": (BOTH_WAYS, HALF)}),
    cell("neighbor, late", axes={"rounds": (BOTH_WAYS, HALF)}, place="fill"),
    cell("neighbor, gap", axes={"rounds": (BOTH_WAYS,)}, place="fill"),
    cell("neighbor, gap, parallel", axes={"rounds": (BOTH_WAYS,)}, place="fill"),
    cell("dynamic_groups"),
    cell("dynamic_groups", "hierarchical", NODES(), place="sum"),
    cell("server"),
    cell("server", "int8", INT8),
    cell("server, asynchronous"),
    cell("pairwise"),
    cell("allreduce, outer", optimizer="adam"),
    cell("allreduce, outer", "on the host", optimizer="adam", options=ON_HOST),
    cell("allreduce, fragments", rounds=2),
    cell("allreduce, fragments", "thirds", THIRDS, rounds=2),
    cell("allreduce, fragments", "thirds, on the host", THIRDS, rounds=2, options=ON_HOST, place="fill", waits=False),
    cell("static, outer", rounds=7),
    cell("static, outer", "on the host", rounds=7, options=ON_HOST, place="fill"),
    cell("static, outer", "of each worker", OWN),
    cell("static, outer", "of each worker, on the host", OWN, options=ON_HOST, place="commit", waits=False),
]
CUDA_CELLS = [
    cell(kind, f"Adam {how}", optimizer=f"adam {how}")
    for kind in ("static", "allreduce")
    for how in ("foreach", "fused", "capturable")
]
"""Cells whose optimizers work only on a GPU."""
BY_NAME = {one.name: one for one in CELLS}


class Model(torch.nn.Module):
    """Two layers and a BatchNorm, each layer with its own dtype; large enough for sums in several stages."""

    def __init__(self, dtypes):
        super().__init__()
        self.first = torch.nn.Linear(6, 49).to(dtypes[0])
        self.norm = torch.nn.BatchNorm1d(49).to(dtypes[0])
        self.second = torch.nn.Linear(49, 4).to(dtypes[-1])

    def forward(self, values):
        hidden = torch.tanh(self.norm(self.first(values.to(self.first.weight.dtype))))
        output: torch.Tensor = self.second(hidden.to(self.second.weight.dtype))
        return output


def of_user(optimizer):
    """Return the user's optimizer unchanged; `late` patches this function to delay its steps."""
    return optimizer


def model_and_data(cell, rank):
    torch.manual_seed(rank)
    return Model(cell.dtypes), [(torch.randn(8, 6), torch.randn(8, 4)) for _ in range(MOST_STEPS)]


def optimizer_of(cell, model):
    name, _, how = cell.optimizer.partition(" ")
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.1, **({how: True} if how else {}))
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def train(cell, world, prepared, *, finish=True, local=0):
    """Train one rank: `rounds` rounds, then `local` steps without averages.

    Returns a dict: "values" (parameters and buffers by name), "host waits", "error" (None or an exception), "steps".
    """
    device = world.simulated_device
    model = prepared[0].to(device.device)
    batches = [(inputs.to(device.device), targets.to(device.device)) for inputs, targets in prepared[1]]
    schedule = cell.schedule
    optimizer = DistributedOptimizer(
        of_user(optimizer_of(cell, model)),
        model,
        schedule,
        timeout=world.timeout.total_seconds(),
        world=world,
        **cell.options,
    )
    waits, error, taken = device.host_waits, None, 0
    steps = cell.rounds * schedule.steps_per_round_of(world.rank)

    def turn(mode=None):
        return world.shared.turns.of(world.rank, mode) if cell.in_turn else contextlib.nullcontext()

    try:
        for inputs, targets in batches[:steps]:
            with turn():
                step(model, optimizer, inputs, targets)
            taken += 1
        waits = device.host_waits - waits
        if local:
            optimizer.engine.guard.detach()  # the guard rejects steps of the plain optimizer
        for inputs, targets in batches[steps : steps + local]:
            step(model, optimizer.optimizer, inputs, targets)
        if finish:
            with turn(TOGETHER):
                optimizer.finish()
        elif not local:
            optimizer.runner.drain()
    except Exception as problem:  # noqa: BLE001 - what is judged
        error = problem
    device.settle()
    live = [*model.named_parameters(), *model.named_buffers()]
    values = {name: value.detach().clone() for name, value in live}
    device.settle()
    return {"values": values, "host waits": waits, "error": error, "steps": taken}


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs).float(), targets).backward()
    optimizer.step()


@contextlib.contextmanager
def late(place, seconds):
    """Context manager: delay the fills or commits of group operations, or the optimizer's steps, by some seconds.

    `place` is one of PLACES; sums are delayed by `SharedState`.
    """
    changed = contextlib.ExitStack()

    def change(owner, name, changed_to):
        changed.enter_context(patch.object(owner, name, changed_to(getattr(owner, name))))

    def delay(action):
        def after_sleep(*args, **kwargs):
            _sleep_here(seconds)
            return action(*args, **kwargs)

        return after_sleep

    def with_late_steps(make):
        def make_late(*args):
            optimizer = make(*args)
            optimizer.register_step_pre_hook(lambda *_: _sleep_here(seconds))
            return optimizer

        return make_late

    if place in ("fill", "all"):
        change(reducer.Reducer, "_launch", delay)
        change(neighbor_reducer.PeerReducer, "_load", delay)
        change(updates.UpdateSender, "_take", delay)
        change(Staging, "begin", delay)
    if place in ("commit", "all"):
        change(
            reducer.Reducer,
            "commit",
            lambda commit: lambda self, reduction, action: commit(self, reduction, delay(action)),
        )
        change(gradient_average, "commit_gradients", delay)
        change(Table, "add", delay)
    if place in ("step", "all"):
        change(sys.modules[__name__], "of_user", with_late_steps)
    with changed:
        yield


@contextlib.contextmanager
def in_small_parts():
    """Context manager: sums in several stages use parts of a few numbers, as large sums do."""
    with patch.multiple(multistage_allreduce, PART_BYTES=1024, SMALLEST_MESSAGE=512):
        yield


@contextlib.contextmanager
def generator_for(schedule):
    """Context manager: run a group generator if the schedule needs one."""
    if not isinstance(schedule.strategy, st.DynamicGroups):
        yield
        return
    from helpers.generator_rig import serving  # which needs pyzmq

    setting = GeneratorSetting.of(schedule.strategy, schedule.cluster)
    with serving(setting) as (_, variables), patch.dict(os.environ, variables):
        yield


_host = threading.local()


def _sleep_here(seconds):
    device = getattr(_host, "device", None)
    if device is not None:
        device.sleep(seconds)


def run_cell(
    cell,
    kind,
    *,
    place="",
    seconds=0.0,
    fault=None,
    launch=Launch.OWN_STREAM,
    timeout=30.0,
    prepare=model_and_data,
    action=train,
    **options,
):
    """Return what `action` returns on every rank, with the operations at `place` delayed, or with a fault."""

    def body(world):
        _host.device = device = world.simulated_device
        result = action(cell, world, prepared[world.rank], **options)
        delayed.append(device.sleeps if isinstance(device, SimulatedDevice) else 1)
        return result

    prepared = [prepare(cell, rank) for rank in range(RANKS)]
    delayed: list[int] = []
    shared = SharedState(delay=seconds if place in ("sum", "all") else 0.0, fault=fault, launch=launch)
    shared.turns = Turns(RANKS)
    with late(place, seconds), in_small_parts(), generator_for(cell.schedule):
        results = run_ranks(kind, RANKS, body, shared, timeout=timeout)
    for result in results:
        if isinstance(result, Exception):
            raise result
    assert not seconds or any(delayed), f"{cell.name}: nothing is late at {place}, so this run is no evidence"
    return results


def distance(one, other, *, parameters_only=False):
    """Return the largest difference between two runs' values, relative to max(1, |value|); infinite if not finite."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):
        for name, value in mine["values"].items():
            if parameters_only and name.startswith("norm.") and name not in ("norm.weight", "norm.bias"):
                continue
            wanted = theirs["values"][name].double().cpu()
            gap = (value.double().cpu() - wanted).abs() / wanted.abs().clamp_min(1)
            worst = max(worst, float(gap.max()) if bool(gap.isfinite().all()) else float("inf"))
    return worst


def tolerance(cell, kind):
    """Return the largest difference that another order of additions may cause; 0 on the simulated device."""
    if kind == "simulated":
        return 0.0
    return 0.05 if torch.bfloat16 in cell.dtypes else 2e-4


@cache
def without_device(cell, **job):
    """Return the results of a cell without a device, with which all other runs are compared; cached."""
    return run_cell(cell, "plain", **job)


def compare(cell, kind, *, place="", seconds=0.0, launch=Launch.OWN_STREAM, **job):
    """Return the largest difference between a cell's run and its run without a device, for which no host waits."""
    wanted = without_device(cell, **job)
    got = run_cell(cell, kind, place=place, seconds=seconds, launch=launch, **job)
    for result in [*wanted, *got]:
        if (error := result.get("error")) is not None:
            raise AssertionError(f"{cell.name}: {error}") from error
    assert getattr(cell, "waits", True) or not any(result["host waits"] for result in got), f"{cell.name}: a host waits"
    return distance(got, wanted)


FAULTS = ("wrong tag", "NaN payload", "partial sum", "never complete")


def judge_fault(cell, kind, fault):
    """Run a cell with a fault; return a sentence on what is wrong, or None.

    Every rank must raise an error and keep nothing of the failed operation: its parameters must be those of a run with
    as many steps that makes no averages from the failed one on.
    """
    patience = 6.0 if fault.kind == "never complete" else 60.0  # the first is waited for, and bounds the start as well
    results = run_cell(cell, kind, fault=fault, timeout=patience)
    for rank, result in enumerate(results):
        if result["error"] is None:
            return f"{cell.name}, {fault.kind}: rank {rank} noticed nothing"
        values = torch.cat([value.double().flatten().cpu() for value in result["values"].values()])
        if not bool(values.isfinite().all()):
            return f"{cell.name}, {fault.kind}: rank {rank} holds what is not finite"
    before = replace(cell, rounds=fault.at + cell.lag)  # a pipeline applies it so many steps later
    run_before = cache(partial(run_cell, before, "plain", finish=False))
    for rank, result in enumerate(results):
        # A step that ends in the error was taken; with averaged gradients it was undone, as all since the fault.
        local = result["steps"] - before.rounds
        choices = [0] if cell.gradients else [local, local + 1]
        wanted = [run_before(local=choice)[rank] for choice in choices]
        gap = min(distance([result], [one], parameters_only=True) for one in wanted)
        if gap > tolerance(cell, kind):
            return f"{cell.name}, {fault.kind}: rank {rank} is {gap:.3g} from its parameters without the failed average"
    return None


def shows_by_delay(compare, cell, place):
    """Return whether some delay changes the numbers; short ones may not, because waits of the host can hide a fault."""
    return any(compare(cell, "simulated", place=place, seconds=0.02 * 4**k) > 1e-3 for k in range(4))
