"""The CUDA path on a simulated device whose streams run queued work late while the host runs ahead."""

import contextlib
import dataclasses
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from helpers.device import cells
from helpers.device.cells import (
    BY_NAME,
    CELLS,
    compare,
    distance,
    judge_fault,
    model_and_data,
    optimizer_of,
    run_cell,
    shows_by_delay,
    step,
)
from helpers.device.ranks import Fault, Launch, SharedState, SimulatedBackend, run_ranks
from helpers.device.simulated_device import _SimulatedStreams
from partreduce import DistributedOptimizer, p_reduce
from partreduce.errors import InputError, PeerFailedError
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.environment import NCCL_TEARS_DOWN, OVER_GLOO
from partreduce.runtime.strategies import gradient_average, parameter_average
from partreduce.runtime.strategies.base import DIFFERENT
from partreduce.runtime.transport import nccl, rendezvous, updates
from partreduce.runtime.transport.multistage_allreduce import HierarchicalCommunicator
from partreduce.runtime.transport.nccl import NcclWorld, check_equal_places
from partreduce.runtime.transport.worlds import world_for_algorithm

pytestmark = pytest.mark.usefixtures("one_thread")
LATE = 0.02


@pytest.mark.parametrize(
    ("name", "place"),
    [*((cell.name, cell.place) for cell in CELLS), ("static, late", "step"), ("neighbor, late", "all")],
)
@pytest.mark.filterwarnings("ignore:partreduce. schedule .* has a pipeline of 3")
def test_late_device_changes_no_bit_and_delays_no_step(name, place):
    assert compare(BY_NAME[name], "simulated", place=place, seconds=LATE) == 0


@pytest.mark.parametrize("name", ["static, late", "allreduce, float16", "static, hierarchical", "static, late, int8"])
def test_collectives_in_the_current_stream_change_no_bit(name):
    """Since 2.8 torch launches collectives with `asyncOp` false in the current stream."""
    launch = Launch.CURRENT_STREAM
    assert compare(BY_NAME[name], "simulated", place="all", seconds=LATE, launch=launch) == 0


@pytest.mark.parametrize(
    "name",
    ["static, hierarchical", "allreduce, int8", "allreduce, every 2, hierarchical, int8, feedback"],
)
def test_hierarchical_stages_in_a_stream_match_gloo(name):
    ours, theirs = (run_cell(BY_NAME[name], kind, finish=False) for kind in ("simulated", "gloo"))
    # Buffers are not coded, and gloo adds them in another order.
    assert distance(ours, theirs, parameters_only=True) == 0


@pytest.mark.parametrize("launch", Launch)
def test_only_a_collective_in_its_own_stream_holds_its_memory(launch):
    """Since torch 2.8 only an operation in its own stream holds its arrays until the wait for it."""

    def body(world):
        device = world.simulated_device
        side, group = device.streams(), world.create((0, 1))
        kept = torch.ones(3, device=device.device)
        with side.side():
            given = kept + world.rank  # memory of the side stream
        side.rejoin()
        address = given.data_ptr()
        work = group.all_reduce(given)
        del given
        with side.another().side():
            pass  # a stream without a wait for the sum
        with device.on(side._side):
            after = torch.zeros(3, device=device.device) + 1
        device.settle()
        return address in device._memory, work is not None and after.tolist() == [1.0] * 3

    held = launch is Launch.OWN_STREAM
    assert run_ranks("simulated", 2, body, SharedState(delay=LATE, launch=launch)) == [(held, True)] * 2


@pytest.mark.parametrize(
    "cell", [BY_NAME["dynamic_groups"], BY_NAME["dynamic_groups, hierarchical"]], ids=lambda cell: cell.name
)
def test_survivors_continue_after_a_failure_in_a_dynamic_group(monkeypatch, cell):
    """A sum that never completes is aborted with its group, and the streams that wait for it continue."""
    aborted, abort = set(), SimulatedBackend.abort

    def body(cell, world, prepared):
        device, (model, batches) = world.simulated_device, prepared
        optimizer = DistributedOptimizer(optimizer_of(cell, model), model, cell.schedule, timeout=60, world=world)
        for number, (inputs, targets) in enumerate(batches[:6]):
            if number == 2 and world.rank == 3:
                assert optimizer.runner.client.group() is not None, (
                    "all workers have requested the group, and the others enter it"
                )
                optimizer.run.reducer.heartbeat.note("left", "was lost")
                optimizer.runner.close(failed=True)
                optimizer.runner.client.close()
                return {"error": None, "values": None}
            step(model, optimizer, inputs, targets)
        assert world.rank in aborted, "the sum over all workers was aborted"
        optimizer.finish()
        device.settle()
        return {"error": None, "values": torch.cat([p.detach().flatten() for p in model.parameters()])}

    monkeypatch.setattr(SimulatedBackend, "abort", lambda one: (aborted.add(one.world.rank), abort(one)))
    first, *others, lost = run_cell(cell, "simulated", action=body)
    assert lost["values"] is None
    assert bool(first["values"].isfinite().all())
    assert all(torch.equal(one["values"], first["values"]) for one in others)


def test_nccl_groups_report_errors_and_are_aborted_together(monkeypatch):
    made, calls = [], []

    class Backend:
        def __init__(self, store, rank, size, options):
            made.append((rank, size, options._timeout.total_seconds(), os.environ[NCCL_TEARS_DOWN]))

        class Options:
            pass

        def __getattr__(self, name):
            return lambda *_: calls.append(name)

    monkeypatch.setattr(nccl, "nccl_backend", lambda: Backend)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(NcclWorld, "_warmed_up", lambda world, communicator, *_: communicator)
    monkeypatch.delenv(NCCL_TEARS_DOWN, raising=False)
    plan = BY_NAME["static, hierarchical"].schedule
    world = NcclWorld(dist.HashStore(), 1, 4, timedelta(seconds=6), device=torch.device("cuda", 0))
    ours = world_for_algorithm(world, plan.strategy.transport.algorithm, plan.cluster)
    ours.prepare(plan)
    assert made == [(1, 2, 60.0, "0"), (1, 4, 60.0, "0"), (1, 2, 60.0, "0"), (0, 2, 60.0, "0"), (0, 2, 60.0, "0")]
    assert NCCL_TEARS_DOWN not in os.environ
    assert isinstance(ours.everyone(), HierarchicalCommunicator)
    world.abandon()
    assert calls == ["_group_start", *["abort"] * 5, "_group_end"]
    assert ours.abandoned


@pytest.mark.parametrize(
    ("owner", "wait", "name", "place"),
    [
        (_SimulatedStreams, "follow", "static, hierarchical", "sum"),
        (Reducer, "_fills_first", "static, late", "fill"),
        (Reducer, "_fills_first", "neighbor, late", "fill"),
        (updates, "await_mark", "neighbor, gap", "fill"),
    ],
)
def test_missing_wait_is_detected(monkeypatch, owner, wait, name, place):
    monkeypatch.setattr(owner, wait, lambda *_: None)
    assert shows_by_delay(compare, BY_NAME[name], place=place)


def test_missing_stream_join_after_a_commit_is_detected(monkeypatch):
    monkeypatch.setattr(Reducer, "rejoin", lambda _: None)
    monkeypatch.setattr(Reducer, "_fills_first", lambda reducer: reducer.streams.rejoin())
    assert shows_by_delay(compare, BY_NAME["static"], place="commit")


@pytest.mark.parametrize("name", ["allreduce, outer", "static, outer, of each worker", "allreduce, fragments, thirds"])
def test_outer_state_on_the_host_is_complete_when_saved(name):
    def train_and_copy_state(cell, world, prepared):
        model, batches = prepared
        optimizer = DistributedOptimizer(
            optimizer_of(cell, model), model, cell.schedule, timeout=30, world=world, **cell.options
        )
        for inputs, targets in batches[:7]:
            step(model, optimizer, inputs, targets)
        state = optimizer.runner.state()
        places = {
            key: world.simulated_device.is_host(value)
            for key, value in state.items()
            if not key.endswith(("place", "facts", "common"))
        }
        values = {key: value.clone() for key, value in state.items()}
        world.simulated_device.settle()
        optimizer.runner.drain()
        return {"values": values, "places": places}

    on_device = run_cell(BY_NAME[name], "simulated", action=train_and_copy_state)
    on_host = run_cell(
        BY_NAME[f"{name}, on the host"], "simulated", place="commit", seconds=LATE, action=train_and_copy_state
    )
    for there, here in zip(on_device, on_host, strict=True):
        assert not any(there["places"].values())
        assert {key for key, is_host in here["places"].items() if not is_host} == {
            key for key in here["places"] if "flight" in key
        }
        assert all(torch.equal(value, here["values"][key]) for key, value in there["values"].items())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("static, late", kind) for kind in cells.FAULTS),
        ("allreduce", "NaN payload"),
        ("allreduce, pipeline", "NaN payload"),
    ],
)
def test_all_workers_detect_a_failed_operation_and_discard_it(name, kind):
    assert judge_fault(BY_NAME[name], "simulated", Fault(kind, 2)) is None


def test_device_check_detects_a_sum_beyond_the_codec_range():
    """Each round has two payloads: a coded one and an uncoded one."""
    fault = Fault("NaN payload", 2 * 2)
    for result in run_cell(BY_NAME["allreduce, float16"], "simulated", fault=fault, timeout=60):
        assert isinstance(result["error"], PeerFailedError)
        assert "or a finite number left the codec's range" in str(result["error"])


def test_masking_a_failed_sum_by_a_product_leaves_nonfinite_values(monkeypatch):
    def by_product(bucket, sums, snapshot, relaxation, ok):
        change = sums[: bucket.size]
        change.sub_(snapshot[: bucket.size]).mul_(ok)
        bucket.flat.add_(change, alpha=relaxation)

    monkeypatch.setattr(parameter_average, "commit_delayed", by_product)
    assert "not finite" in judge_fault(BY_NAME["static, late"], "simulated", Fault("NaN payload", 2))


def test_missing_undo_of_a_failed_step_is_detected(monkeypatch):
    monkeypatch.setattr(gradient_average.GradientAverage, "after_step", lambda *_: DIFFERENT)
    assert "without the failed average" in judge_fault(BY_NAME["allreduce"], "simulated", Fault("wrong tag", 2))


@pytest.mark.parametrize(("name", "at"), [("static", 3), ("allreduce", 3), ("static", 4)])
def test_finish_reports_failures_of_the_last_operations(name, at):
    for result in run_cell(BY_NAME[name], "simulated", fault=Fault("wrong tag", at), timeout=60):
        assert isinstance(result["error"], PeerFailedError)


def test_blocked_host_is_released_when_an_operation_never_completes():
    def body(cell, world, prepared):
        model, batches = prepared
        optimizer = DistributedOptimizer(optimizer_of(cell, model), model, cell.schedule, timeout=6, world=world)
        error = None
        try:
            for inputs, targets in batches[:5]:
                step(model, optimizer, inputs, targets)
                float(model.second.bias.detach().sum())  # as `loss.item()` would
        except PeerFailedError as problem:
            error = problem
        return {"error": error, "waits": world.simulated_device.host_waits}

    results = run_cell(BY_NAME["static"], "simulated", fault=Fault("never complete", 1), timeout=6, action=body)
    assert all(isinstance(result["error"], PeerFailedError) and result["waits"] for result in results)


def test_p_reduce_waits_for_its_check():
    def body(world):
        with world.simulated_device.device:
            tensors = [torch.full((9,), float(world.rank)), torch.full((3, 2), 10.0 * world.rank)]
            too_long = torch.zeros(8 + 16 * world.rank)
        p_reduce(tensors, (0, 1), world=world, timeout=60)
        means = [float(tensor.sum()) for tensor in tensors]
        try:
            p_reduce(too_long[:8], (0, 1), 1 + world.rank / 2, world=world, timeout=60)
        except PeerFailedError as error:
            return [*means, str(error)]
        return means

    for first, second, text in run_ranks("simulated", 2, body, SharedState()):
        assert (first, second) == (4.5, 30.0)
        assert "different tensors, relaxation" in text or "gave up" in text


def test_trace_contains_device_times(tmp_path):
    cell = dataclasses.replace(BY_NAME["static"], rounds=3)

    def body(cell, world, prepared):
        model, batches = prepared
        optimizer = DistributedOptimizer(optimizer_of(cell, model), model, cell.schedule, trace=tmp_path, world=world)
        for inputs, targets in batches[:3]:
            step(model, optimizer, inputs, targets)
        optimizer.finish()
        return {"error": None}

    run_cell(cell, "simulated", place="sum", seconds=0.05, action=body)
    events = json.loads((tmp_path / "trace-00000.json").read_text())["traceEvents"]
    lasted = [event["dur"] / 1e6 for event in events if event["name"].startswith("average")]
    assert len(lasted) == 3
    assert min(lasted) > 0.05


def test_simulated_device_runs_late_and_counts_host_waits():
    def body(world):
        device = world.simulated_device
        values = torch.zeros(3, device=device.device)
        device.sleep(0.2)
        values.add_(1)
        early = device.host_waits
        total = float(values.sum())
        return early, total, device.host_waits

    assert run_ranks("simulated", 1, body, SharedState()) == [(0, 3.0, 1)]


@pytest.fixture
def new_operation():
    """A namespace with an operation that was never looked up."""
    with torch.library._scoped_library("partreduce_pretended", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: 2 * x, "CompositeExplicitAutograd")
        yield
    vars(torch.ops).pop("partreduce_pretended", None)


@pytest.mark.parametrize("made", [torch._ops.OpOverloadPacket, torch._ops.OpOverload])
def test_concurrent_first_lookups_of_an_operation_return_one_object(made, new_operation, monkeypatch):
    """With two objects torch frees the one whose address its C++ part has kept, and a later operation crashes."""
    inside, make = threading.Barrier(2), made.__init__

    def slowly(self, *args, **kwargs):
        make(self, *args, **kwargs)
        if "partreduce_pretended" in str(self._qualified_op_name if made is torch._ops.OpOverloadPacket else self):
            with contextlib.suppress(threading.BrokenBarrierError):
                inside.wait(0.5)  # until the other thread arrives, which it must not

    monkeypatch.setattr(made, "__init__", slowly)
    with ThreadPoolExecutor(2) as threads:
        looked_up = [threads.submit(lambda: torch.ops.partreduce_pretended.double.default) for _ in range(2)]
        first, second = (one.result() for one in looked_up)
    assert inside.broken
    assert first is second


def test_workers_sharing_a_gpu_are_rejected():
    check_equal_places({0: "node-a GPU-1", 1: "node-a GPU-2", 2: "node-b GPU-1"})
    with pytest.raises(InputError, match=r"ranks 0 and 2 share GPU GPU-1 of node-a, and NCCL needs one for each"):
        check_equal_places({0: "node-a GPU-1", 1: "node-a GPU-2", 2: "node-a GPU-1"})


def test_cuda_without_nccl_is_rejected(monkeypatch):
    monkeypatch.delenv(OVER_GLOO, raising=False)
    monkeypatch.setattr(rendezvous.dist, "is_nccl_available", lambda: False)
    with pytest.raises(InputError, match="this torch has no NCCL"):
        rendezvous.default_world(torch.device("cuda", 0), None, None)


def test_model_on_several_devices_is_rejected():
    cell = BY_NAME["static"]
    model, _ = model_and_data(cell, 0)
    model.norm.running_mean = model.norm.running_mean.to("meta")
    with pytest.raises(InputError, match=r"lies on several devices \(parameter 'first.weight' on cpu, buffer 'norm"):
        DistributedOptimizer(optimizer_of(cell, model), model, cell.schedule)
