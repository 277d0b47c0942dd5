"""Cells: a small training job under one schedule, run by simulated ranks and compared with a run without a device."""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Any
from unittest.mock import patch

import torch

from helpers.conformance.cells import TOGETHER, Turns
from helpers.conformance.kinds import Kind
from helpers.device.pretended import PretendedDevice
from helpers.device.ranks import Launch, SharedState, run_ranks
from helpers.training import group_phases
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.runtime.averaging import neighbor_reducer, reducer
from partreduce.runtime.sharding.table import Staging, Table
from partreduce.runtime.strategies import gradient_average
from partreduce.runtime.transport import multistage_allreduce, updates
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting

RANKS = 4
DILOCO = st.OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)
MOST_STEPS = 24
PLACES = ("fill", "sum", "commit", "step", "all")
"""Operations that may be delayed: filling send arrays, sums, committing averages, optimizer steps, and all of them."""
NODES = st.Transport(algorithm=st.AllReduceAlgorithm.HIERARCHICAL)
SHORT_BLOCKS = st.Transport(codec=st.Codec.INT8, block=32)
FEEDBACK = st.Transport(codec=st.Codec.INT4, block=32, error_feedback=True)
INSIDE_TOO = st.Transport(
    algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, block=32, error_feedback=True
)
MIXED = (torch.float32, torch.bfloat16)
UNEVEN: Any = {"steps_per_round": (1, 2, 1, 3), "averaging": st.Averaging.STEP_NORMALIZED}
PAIRS = group_phases(RANKS, [(0, 1), (2, 3)], [(1, 2), (0, 3)])
PATIENT = st.PartialAllReduce(quorum=st.QuorumStart.SOLO, grace=60_000_000)
"""A quorum in which each round waits for all workers, so that its sum is determined."""
GENERATED = st.DynamicGroups(group_size=RANKS, division=st.GroupSplit.GLOBAL)
RING = [(i, (i + d) % RANKS, Fraction(1, 3)) for i in range(RANKS) for d in (1, 3)]
HALF = [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2)), (2, 3, Fraction(1, 4))]


def groups(*, relaxation=Fraction(1), **axes):
    """Return static groups: pairs, crossed pairs, and all ranks in turn."""
    listed = ([(0, 1), (2, 3)], [(0, 3), (1, 2)], [tuple(range(RANKS))])
    phases = (st.Phase.from_groups(RANKS, [st.Group(members, relaxation) for members in phase]) for phase in listed)
    return st.StaticGroups(phases=st.GroupPhases(tuple(phases)), **axes)


def graphs(*edges, **axes):
    return st.NeighborAveraging(rounds=tuple(st.Round.from_edges(RANKS, one) for one in edges), **axes)


GROUPS = groups()


@dataclass(frozen=True)
class Cell:
    """A training job and the strategy that averages it."""

    name: str
    strategy: Any = GROUPS
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    buffers: str = "average"
    optimizer: str = "sgd"
    rounds: int = 5
    on_host: bool = False
    """Whether outer parameters and outer momentum are kept in host memory between outer steps."""

    @property
    def schedule(self):
        return Schedule(self.name, Cluster.regular(2, RANKS // 2), self.strategy)


CELLS = [
    Cell("static"),
    Cell("static, overlap", groups(sync=st.DelayedAveraging())),
    Cell("static, relaxation 3/2", groups(relaxation=Fraction(3, 2))),
    Cell("static, overlap, relaxation 1/2", groups(sync=st.DelayedAveraging(), relaxation=Fraction(1, 2))),
    Cell("static, unequal steps per round, normalized", groups(**UNEVEN)),
    Cell("static, overlap, unequal steps per round, normalized", groups(sync=st.DelayedAveraging(), **UNEVEN)),
    Cell("allreduce of gradients", st.AllReduce()),
    Cell("allreduce of gradients, pipeline", st.AllReduce(sync=st.Pipeline())),
    Cell("allreduce of gradients, pipeline, mixed", st.AllReduce(sync=st.Pipeline()), dtypes=MIXED),
    Cell("allreduce of gradients, pipeline of 3, Adam", st.AllReduce(sync=st.Pipeline(width=3)), optimizer="adam"),
    Cell(
        "allreduce of gradients, layers",
        st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)),
    ),
    Cell("allreduce of parameters", st.AllReduce(steps_per_round=2)),
    Cell("allreduce of parameters, overlap", st.AllReduce(steps_per_round=2, sync=st.DelayedAveraging())),
    Cell("neighbor", graphs(RING, HALF)),
    Cell("neighbor, overlap", graphs(RING, HALF, sync=st.DelayedAveraging())),
    Cell("neighbor, gap", graphs(RING, sync=st.IterationGap(max_ig=2))),
    Cell("neighbor, gap, parallel", graphs(RING, sync=st.IterationGap(max_ig=2, update_order=st.UpdateOrder.DPSGD))),
    Cell("static, bfloat16", dtypes=(torch.bfloat16,)),
    Cell("static, overlap, mixed", groups(sync=st.DelayedAveraging()), dtypes=MIXED),
    Cell("allreduce of gradients, mixed", st.AllReduce(), dtypes=MIXED),
    Cell("static, overlap, local buffers", groups(sync=st.DelayedAveraging()), buffers="local"),
    Cell("static, broadcast buffers", buffers="broadcast"),
    Cell("static, Adam", optimizer="adam"),
    Cell("allreduce of gradients, Adam", st.AllReduce(), optimizer="adam"),
    Cell("allreduce of gradients, float16", st.AllReduce(transport=st.Transport(codec=st.Codec.FLOAT16))),
    Cell("allreduce of gradients, bfloat16", st.AllReduce(transport=st.Transport(codec=st.Codec.BFLOAT16))),
    Cell("static, float16", groups(transport=st.Transport(codec=st.Codec.FLOAT16))),
    Cell(
        "static, overlap, float16", groups(sync=st.DelayedAveraging(), transport=st.Transport(codec=st.Codec.FLOAT16))
    ),
    Cell(
        "allreduce of parameters, bfloat16",
        st.AllReduce(steps_per_round=2, transport=st.Transport(codec=st.Codec.BFLOAT16)),
    ),
    Cell("allreduce of gradients, int8", st.AllReduce(transport=SHORT_BLOCKS)),
    Cell("allreduce of gradients, int4, feedback", st.AllReduce(transport=FEEDBACK)),
    Cell("static, overlap, int8", groups(sync=st.DelayedAveraging(), transport=SHORT_BLOCKS)),
    Cell("static, hierarchical", groups(transport=NODES)),
    Cell("static, hierarchical, overlap", groups(sync=st.DelayedAveraging(), transport=NODES)),
    Cell("allreduce of gradients, hierarchical", st.AllReduce(transport=NODES)),
    Cell("allreduce of gradients, hierarchical, pipeline", st.AllReduce(sync=st.Pipeline(), transport=NODES)),
    Cell(
        "allreduce of gradients, hierarchical, float16", st.AllReduce(transport=replace(NODES, codec=st.Codec.FLOAT16))
    ),
    Cell(
        "allreduce of gradients, hierarchical, int8 across nodes",
        st.AllReduce(transport=replace(NODES, codec=st.Codec.INT8, block=32, where=st.CodecScope.ACROSS_NODES)),
    ),
    Cell(
        "allreduce of parameters, hierarchical, int8, feedback", st.AllReduce(steps_per_round=2, transport=INSIDE_TOO)
    ),
    Cell("allreduce, quorum", st.AllReduce(sync=PATIENT)),
    Cell("dynamic groups", GENERATED),
    Cell("dynamic groups, hierarchical", replace(GENERATED, transport=NODES)),
    Cell("server", st.Server(hosts=(0, 2))),
    Cell("server, int8", st.Server(hosts=(0, 2), transport=SHORT_BLOCKS)),
    Cell("server, asynchronous", st.Server(hosts=(0,), synchronous=False)),
    Cell("pairwise", st.Pairwise(active=(1, 3))),
    *(
        Cell(f"{name}{', on the host' * on_host}", strategy, on_host=on_host, **members)
        for name, strategy, members in (
            ("outer steps", st.AllReduce(steps_per_round=2, payload=st.Payload(outer=DILOCO)), {"optimizer": "adam"}),
            ("outer steps of all, between groups", groups(payload=st.Payload(outer=DILOCO)), {"rounds": 7}),
            (
                "outer steps of groups",
                groups(
                    steps_per_round=2, payload=st.Payload(outer=replace(DILOCO, outer_params=st.OuterParams.PER_WORKER))
                ),
                {},
            ),
            (
                "fragments merged late",
                st.AllReduce(
                    steps_per_round=4,
                    sync=st.DelayedMerge(steps=3, alpha=Fraction(1, 2)),
                    payload=st.Payload(outer=DILOCO, fragments=3),
                ),
                {"rounds": 3},
            ),
        )
        for on_host in (False, True)
    ),
]
CUDA_CELLS = [
    Cell(f"{kind}, Adam {how}", strategy, optimizer=f"adam {how}")
    for kind, strategy in (("static", groups()), ("allreduce", st.AllReduce()))
    for how in ("foreach", "fused", "capturable")
]
"""Cells whose optimizers work only on a GPU."""


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
    device = world.pretended
    model = prepared[0].to(device.device)
    batches = [(inputs.to(device.device), targets.to(device.device)) for inputs, targets in prepared[1]]
    schedule = cell.schedule
    optimizer = DistributedOptimizer(
        of_user(optimizer_of(cell, model)),
        model,
        schedule,
        timeout=world.timeout.total_seconds(),
        buffers=cell.buffers,
        outer_state="host" if cell.on_host else "device",
        world=world,
    )
    waits, error, taken = device.host_waits, None, 0
    steps = cell.rounds * schedule.steps_per_round_of(world.rank)

    def turn(mode=None):
        is_free = Kind(cell.strategy).in_turn
        return world.shared.turns.of(world.rank, mode) if is_free else contextlib.nullcontext()

    try:
        for inputs, targets in batches[:steps]:
            with turn():
                step(model, optimizer, inputs, targets)
            taken += 1
        waits = device.host_waits - waits
        if local:
            optimizer.engine.guard.detach()  # which refuses steps of the plain optimizer
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
        _host.device = device = world.pretended
        result = action(cell, world, prepared[world.rank], **options)
        delayed.append(device.sleeps if isinstance(device, PretendedDevice) else 1)
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
    assert not seconds or any(delayed), f"{cell.name}: nothing is late at {place}, so this run shows nothing"
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
    """Return the largest difference that another order of additions may cause; 0 on the pretended device."""
    if kind == "pretended":
        return 0.0
    return 0.05 if torch.bfloat16 in cell.dtypes else 2e-4


@lru_cache(maxsize=1)
def without_device(cell, **job):
    """Return the results of a cell without a device, with which all other runs are compared; cached."""
    return run_cell(cell, "plain", **job)


def compare(cell, kind, *, place="", seconds=0.0, launch=Launch.OWN_STREAM, **job):
    """Return the largest difference between a cell's run and its run without a device."""
    wanted = without_device(cell, **job)
    got = run_cell(cell, kind, place=place, seconds=seconds, launch=launch, **job)
    for result in [*wanted, *got]:
        if (error := result.get("error")) is not None:
            raise AssertionError(f"{cell.name}: {error}") from error
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
    sync = cell.strategy.sync
    delay = sync.lag if isinstance(sync, st.Pipeline) else 0
    before = replace(cell, rounds=fault.at + delay)  # a pipeline applies it so many steps later
    run_before = cache(partial(run_cell, before, "plain", finish=False))
    for rank, result in enumerate(results):
        # A step that ends in the error was taken; with averaged gradients it was undone, as all since the fault.
        local = result["steps"] - before.rounds
        choices = [0] if cell.schedule.strategy.averages_gradients else [local, local + 1]
        wanted = [run_before(local=choice)[rank] for choice in choices]
        gap = min(distance([result], [one], parameters_only=True) for one in wanted)
        if gap > tolerance(cell, kind):
            return f"{cell.name}, {fault.kind}: rank {rank} is {gap:.3g} from its parameters without the failed average"
    return None


def shows_by_delay(compare, cell, place):
    """Return whether some delay changes the numbers; short ones may not, because waits of the host can hide a fault."""
    return any(compare(cell, "pretended", place=place, seconds=0.02 * 4**k) > 1e-3 for k in range(4))
