"""The stages of `make gpu`: functions that run in a process each and return what they found.

A stage raises `Skip` if something that it needs is missing, and any other error if the GPU path is wrong.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.kit import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEEDED = ("torch", "numpy", "pydantic", "annotated_types", "lazy_loader")
"""Modules that the runtime imports; zmq and safetensors are only needed by servers, pairs and checkpoints."""
LATE = 0.05
SIMULATED = "PARTREDUCE_GPU_SIMULATED"
"""Set by `--simulated`: stages 3, 3a, 3b, 3c and 5 run on the CPU's simulated device instead."""


def kind() -> str:
    return "simulated" if os.environ.get(SIMULATED) else "cuda"


class Skip(Exception):  # noqa: N818 - not an error
    """Why a stage cannot run here."""


def versions() -> dict[str, Any]:
    """1: installed versions, and the device."""
    import torch

    properties: Any = torch.cuda.get_device_properties(0)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
        "device": properties.name,
        "devices": torch.cuda.device_count(),
        "memory GiB": round(properties.total_memory / 2**30, 1),
        "optional": {name: importlib.util.find_spec(name) is not None for name in ("zmq", "safetensors")},
    }


def _nccl_world(store: Any, attempt: int) -> Any:
    import torch

    from partreduce.runtime.transport.nccl import NcclWorld

    return NcclWorld(store, 0, 1, timedelta(seconds=20), device=torch.device("cuda", 0), attempt=attempt)


def nccl_alone() -> dict[str, Any]:
    """2: raw groups of one rank, created, used, aborted and created again, next to the user's own group."""
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise Skip("this torch has no NCCL")
    torch.cuda.set_device(0)
    store: Any = dist.HashStore()
    seen: dict[str, Any] = {}
    for attempt, how in enumerate(("no process group", "init without device_id", "init with device_id"), start=1):
        if attempt > 1:
            device = {"device_id": torch.device("cuda", 0)} if attempt == 3 else {}
            place = f"tcp://127.0.0.1:{free_port()}"
            dist.init_process_group("nccl", init_method=place, rank=0, world_size=1, **device)
        world = _nccl_world(store, attempt)
        started = time.perf_counter()
        communicator = world.create((0,))
        seconds = time.perf_counter() - started
        values = torch.arange(8.0, device="cuda")
        communicator.all_reduce(values).wait()
        works = communicator.exchange([(0, values.clone())], [(0, received := torch.empty(8, device="cuda"))])
        for work in works:
            work.wait()
        communicator.broadcast(values).wait()
        assert received.tolist() == values.tolist() == list(range(8)), "one rank's sum is its own"
        world.abandon()
        other = torch.ones(4, device="cuda")
        if dist.is_initialized():
            dist.all_reduce(other)  # the user's group outlives ours
            dist.destroy_process_group()
        assert other.tolist() == [1.0] * 4
        seen[how] = f"{seconds:.2f} s to connect"
    return seen


def _against_cpu(cells: list[Any], *, places: tuple[str, ...]) -> dict[str, Any]:
    from helpers.device.cells import compare, tolerance

    return _compare_all(cells, places, compare, lambda cell: tolerance(cell, kind()))


def _compare_all(
    cells: list[Any], places: tuple[str, ...], compare: Callable[..., float], tolerance: Callable[[Any], float]
) -> dict[str, Any]:
    """Compare every cell at every place; on the simulated device, where they mostly sleep, two at once per core."""
    gaps, wrong, of_cell = {}, [], partial(_gaps, places, compare)
    with contextlib.ExitStack() as stack:
        found = map(of_cell, cells)
        if kind() == "simulated":
            number = 2 * (os.cpu_count() or 1)
            found = stack.enter_context(ProcessPoolExecutor(number, get_context("spawn"))).map(of_cell, cells)
        for cell, results in zip(cells, found, strict=True):
            for name, gap, error in results:
                if error or not gap <= tolerance(cell):
                    wrong.append(f"{name}: {error or f'{gap:.3g} from the CPU'}"[:300])
                else:
                    gaps[name] = gap
    assert not wrong, f"{len(wrong)} of {len(cells) * len(places)}: " + "; ".join(wrong)
    return {"cells": len(gaps), "largest relative difference": max(gaps.values(), default=0.0)}


def _gaps(places: tuple[str, ...], compare: Callable[..., float], cell: Any) -> list[tuple[str, float, str]]:
    """Run one cell with a delay at each place; return (name, difference from the CPU's run, error)."""
    found = []
    for place in places:
        name, gap, error = f"{cell.name}{place and ', late '}{place}", float("nan"), ""
        started = time.monotonic()
        try:
            gap = compare(cell, kind(), place=place, seconds=LATE if place else 0.0)
        except Exception as problem:  # noqa: BLE001 - the other cells still run
            error = f"{type(problem).__name__}: {problem}"
        print(f"{name}: {error or f'{gap:g} from the CPU'}, {time.monotonic() - started:.1f} s", flush=True)
        found.append((name, gap, error))
    return found


def simulated_ranks() -> dict[str, Any]:
    """3: four ranks share the device; every cell against the CPU, with a delay at each place and at all of them."""
    from helpers.device.cells import CELLS, CUDA_CELLS, PLACES

    return _against_cpu([*CELLS, *([] if os.environ.get(SIMULATED) else CUDA_CELLS)], places=("", *PLACES))


def sums_in_the_current_stream() -> dict[str, Any]:
    """3a: the same with sums in the current stream, as in torch since 2.8 if `asyncOp` is false."""
    from helpers.device.cells import CELLS, compare, tolerance
    from helpers.device.ranks import Launch

    chosen = [
        cell for cell in CELLS if cell.kind.startswith(("static", "allreduce")) and not (cell.outer or cell.quorum)
    ]
    compared = partial(compare, launch=Launch.CURRENT_STREAM)
    return _compare_all(chosen, ("", "all"), compared, lambda cell: tolerance(cell, kind()))


def tables() -> dict[str, Any]:
    """3c: separately placed embedding tables; every cell against the CPU, on a GPU with four processes."""
    from helpers.device.cells import PLACES, RANKS
    from helpers.device.table_cells import TABLE_CELLS, compare

    if kind() == "simulated":
        return _compare_all(TABLE_CELLS, ("", *PLACES), compare, lambda _cell: 0.0)
    ended = _launch(RANKS, "tables", "-", environment={"PARTREDUCE_CUDA_OVER_GLOO": "1"})
    assert all(code == 0 for code, _ in ended), " | ".join(text.strip()[-300:] for _, text in ended)
    return {"cells": len(TABLE_CELLS), "message": ended[0][1].strip().splitlines()[-1]}


def mends_taken_out() -> dict[str, Any]:
    """3b: without the wait for fills, a late fill must change the numbers, which proves that stage 3 can fail."""
    from helpers.device.cells import CELLS, compare
    from partreduce.runtime.averaging.reducer import Reducer

    chosen = [cell for cell in CELLS if cell.name in ("static, late", "neighbor, late")]
    with patch.object(Reducer, "_fills_first", lambda _: None):
        gaps = {cell.name: compare(cell, kind(), place="fill", seconds=LATE) for cell in chosen}
    assert all(gap > 1e-3 for gap in gaps.values()), f"the sleep did not show what it should: {gaps}"
    return {name: f"{gap:.3g} off, as it must be" for name, gap in gaps.items()}


def no_synchronizing() -> dict[str, Any]:
    """4: no step makes the host wait for the device (`set_sync_debug_mode`), for each kind that promises that."""
    import torch

    from helpers.device import cells

    names = ("static", "static, late", "neighbor, late", "allreduce")
    chosen = [cell for cell in cells.CELLS if cell.name in names]
    plain_step = cells.step

    def strict_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs).float(), targets).backward()
        torch.cuda.set_sync_debug_mode("error")  # ranks are threads, and the mode is the process's: it only grows
        optimizer.step()

    problems = []
    cells.step = strict_step
    try:
        for cell in chosen:
            results = cells.run_cell(cell, "cuda")
            torch.cuda.set_sync_debug_mode("default")
            # `finish` waits by intention, and is not part of a step.
            problems += [
                f"{cell.name}: {one['error']}"
                for one in results
                if one["error"] is not None and one["steps"] < cell.rounds
            ]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        cells.step = plain_step
    assert not problems, "; ".join(sorted(set(problems)))[:600]
    return {"kinds": len(chosen)}


def faults() -> dict[str, Any]:
    """5: wrong tag, NaN, partial sum, no end: every rank notices, and parameters keep nothing of it."""
    from helpers.device.cells import CELLS, FAULTS, judge_fault
    from helpers.device.ranks import Fault

    names = ("static", "static, late", "allreduce", "allreduce, Adam", "allreduce, pipeline")
    chosen = [cell for cell in CELLS if cell.name in names]
    messages = [judge_fault(cell, kind(), Fault(fault, 2)) for cell in chosen for fault in FAULTS]
    wrong = [sentence for sentence in messages if sentence is not None]
    assert not wrong, "; ".join(wrong)
    return {"faults": len(messages)}


def idioms() -> dict[str, Any]:
    """6: what users do: GradScaler with an infinite gradient, autocast, compile, LSTM, unused parameters."""
    from benchmarks.gpu.idioms import IDIOMS

    outcomes, wrong = {}, []
    for name, action in IDIOMS.items():
        try:
            outcomes[name] = action()
        except Exception as error:  # noqa: BLE001 - the others still run
            wrong.append(f"{name}: {type(error).__name__}: {error}"[:300])
    assert not wrong, "; ".join(wrong)
    return outcomes


def _launch(ranks: int, body: str, *arguments: str, environment: dict[str, str], kill: int | None = None) -> list[Any]:
    """Return exit code and output of several processes of `benchmarks.gpu.processes`."""
    running = []
    command = [sys.executable, "-m", "benchmarks.gpu.processes", body, *arguments]
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    variables = os.environ | environment | shared | {"MASTER_PORT": str(free_port())}
    for rank in map(str, range(ranks)):
        own = variables | {"RANK": rank, "LOCAL_RANK": rank}
        running.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    if kill is not None:
        line = ""
        while "step 3" not in line and running[kill].stdout is not None and (line := running[kill].stdout.readline()):
            pass
        running[kill].send_signal(signal.SIGKILL)
    ended = []
    for process in running:
        try:
            output, _ = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            output = "did not end\n" + process.communicate()[0]
        ended.append((process.returncode, output))
    return ended


def gloo_processes() -> dict[str, Any]:
    """7: four processes with CUDA tensors over gloo: static, server, pairwise, a checkpoint, and one that is killed."""
    outcomes: dict[str, Any] = {}
    wrong = []
    optional = {"server": "zmq", "pairwise": "zmq", "checkpoint": "safetensors"}
    with tempfile.TemporaryDirectory() as folder:
        for body in ("static", "server", "pairwise", "checkpoint", "killed"):
            if body in optional and importlib.util.find_spec(optional[body]) is None:
                outcomes[body] = f"skipped: no {optional[body]}"
                continue
            kill = 2 if body == "killed" else None
            ended = _launch(4, body, folder, environment={"PARTREDUCE_CUDA_OVER_GLOO": "1"}, kill=kill)
            if kill is None:
                good = all(code == 0 for code, _ in ended)
            else:
                good = all("PeerFailedError" in text for rank, (_, text) in enumerate(ended) if rank != kill)
            outcomes[body] = "ok"
            if not good:
                wrong.append(f"{body}: " + " | ".join(text.strip()[-200:] for _, text in ended))
    assert not wrong, "; ".join(wrong)
    return outcomes


def two_ranks_on_one_gpu() -> dict[str, Any]:
    """8: two NCCL ranks that share a GPU raise an error of one sentence."""
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise Skip("this torch has no NCCL")
    ended = _launch(2, "static", "-", environment={"PARTREDUCE_ONE_GPU": "1"})
    assert all(code and "ranks 0 and 1 share GPU" in text for code, text in ended), [text[-300:] for _, text in ended]
    return {"message": "ranks 0 and 1 share GPU …"}


def memory() -> dict[str, Any]:
    """9: stage 3 without the caching allocator, which frees an array at once; and the peak memory."""
    import torch

    from helpers.device import cells
    from helpers.device.ranks import SharedState, run_ranks
    from partreduce.runtime.optimizer import DistributedOptimizer

    found = _against_cpu([cell for cell in cells.CELLS if cell.late], places=("", "fill"))
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        return found
    size = 2**24

    def body(world: Any) -> int:
        model = torch.nn.Linear(size // 4096, 4096, bias=False, device="cuda")
        base = torch.cuda.memory_allocated()
        schedule = cells.BY_NAME["static, late"].schedule
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, world=world)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, size // 4096, device="cuda")).sum().backward()
            optimizer.step()
        world.simulated_device.settle()
        return torch.cuda.max_memory_allocated() - base

    peaks = run_ranks("cuda", cells.RANKS, body, SharedState())
    return found | {"peak arrays of model size, all four ranks together": round(max(peaks) / (4 * size), 1)}


STAGES: dict[str, tuple[Callable[[], dict[str, Any]], float, dict[str, str]]] = {
    "1 versions": (versions, 60, {}),
    "2 NCCL alone": (nccl_alone, 120, {}),
    "3 simulated ranks": (simulated_ranks, 900, {}),
    "3a sums in the current stream": (sums_in_the_current_stream, 240, {}),
    "3b a mend taken out": (mends_taken_out, 60, {}),
    "3c tables": (tables, 180, {}),
    "4 no synchronizing": (no_synchronizing, 90, {}),
    "5 faults": (faults, 180, {}),
    "6 idioms": (idioms, 180, {}),
    "7 gloo processes": (gloo_processes, 300, {}),
    "8 two ranks on one GPU": (two_ranks_on_one_gpu, 90, {}),
    "9 memory": (memory, 90, {}),
    "9b without caching": (memory, 120, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
}
"""By name: (function, time limit in seconds, environment)."""


def results_folder() -> Path:
    folder = ROOT / "build" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
