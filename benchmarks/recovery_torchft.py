"""torchft's workers for the benchmark of recovery: one process a replica group, a lighthouse, and who starts them.

    PYTHONPATH=SITE python -m benchmarks.recovery_torchft FOLDER WORKERS RESTARTS SECONDS SETTINGS

benchmarks/recovery.py starts it, and reads what the workers write into FOLDER. As under `partreduce run`, all processes
are forked after the imports, and those that take the place of killed ones wait for their turn: a killed worker is
started again within milliseconds. torchft is no dependency of this project.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.faults.processes import become

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Settings:
    """What a careful user of torchft may choose, in milliseconds; by default what its README and train_ddp.py show."""

    join: int = 10_000
    tick: int = 100
    silence: int = 5_000
    """The lighthouse's `heartbeat_timeout_ms`."""
    heartbeat: int = 100
    collective: int = 5_000
    """Of the gloo group."""
    manager: int = 30_000
    init_sync: bool = True

    @property
    def words(self) -> str:
        return (
            f"lighthouse `join_timeout_ms` {self.join}, `quorum_tick_ms` {self.tick}, `heartbeat_timeout_ms` "
            f"{self.silence}; manager `timeout` {self.manager} ms, `heartbeat_interval` {self.heartbeat} ms; "
            f"group's `timeout` {self.collective} ms, `init_sync` {self.init_sync}"
        )

    def text(self) -> str:
        return json.dumps(asdict(self))


def _milliseconds(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def train(folder: Path, rank: int, pause: float, settings: Settings, lighthouse: str) -> None:
    """Train as the benchmark's other script does, with the network and the optimizer in torchft's wrappers."""
    import torch
    from torch import nn

    # torchft is not among the dependencies
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]

    from partreduce.runtime.transport.torch_api import TCPStore

    store = TCPStore(LOOPBACK, 0, None, True, wait_for_workers=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def give() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def take(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=_milliseconds(settings.collective)),
        load_state_dict=take,
        state_dict=give,
        min_replica_size=1,
        timeout=_milliseconds(settings.manager),
        heartbeat_interval=_milliseconds(settings.heartbeat),
        init_sync=settings.init_sync,
        rank=0,
        world_size=1,
        store_addr=LOOPBACK,
        store_port=store.port,
        hostname=LOOPBACK,
        lighthouse_addr=lighthouse,
        replica_id=f"worker_{rank}",
    )
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    draw = torch.Generator().manual_seed(rank)
    with (folder / f"{rank}.jsonl").open("a", buffering=1) as file:
        print(json.dumps(["pid", os.getpid()]), file=file)
        while True:
            optimizer.zero_grad()  # asks for the quorum, beside what follows
            loss = wrapped(torch.randn(8, 64, generator=draw)).square().mean()
            time.sleep(pause)
            before = manager.current_step()
            loss.backward()
            optimizer.step()
            after = manager.current_step()
            print(json.dumps([after - 1 if after > before else "discarded", time.monotonic()]), file=file)


def _serve(settings: Settings, write: int) -> None:
    from torchft import _torchft

    server = _torchft.LighthouseServer(
        bind=f"{LOOPBACK}:0",
        min_replicas=1,
        join_timeout_ms=settings.join,
        quorum_tick_ms=settings.tick,
        heartbeat_timeout_ms=settings.silence,
    )
    os.write(write, f"http://{LOOPBACK}:{server.address().rpartition(':')[2]}".encode())
    while True:
        time.sleep(60)


def _forked(action: Callable[[], None]) -> int:
    from partreduce.runtime.launcher.process_cleanup import die_with_parent

    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(lambda: action() if die_with_parent(parent) else None, None, {})
    return pid


def main() -> None:
    folder, workers, restarts, pause = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    settings = Settings(**json.loads(sys.argv[5]))
    import torch._dynamo
    import torchft  # noqa: F401 - once, before the forks

    import partreduce.runtime.transport.torch_api  # noqa: F401 - as said

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    read, write = os.pipe()
    _forked(lambda: _serve(settings, write))
    lighthouse = os.read(read, 1000).decode()
    waiting: list[tuple[int, int]] = []
    """A process and the pipe that tells it which worker it is."""
    for _ in range(workers + restarts):
        ear, mouth = os.pipe()

        def begin(ear: int = ear) -> None:
            train(folder, int(os.read(ear, 100)), pause, settings, lighthouse)

        waiting.append((_forked(begin), mouth))
    rank_of: dict[int, int] = {}

    def start(rank: int) -> None:
        pid, mouth = waiting.pop(0)
        rank_of[pid] = rank
        os.write(mouth, str(rank).encode())

    for rank in range(workers):
        start(rank)
    while rank_of:
        pid, _ = os.wait()
        ended = rank_of.pop(pid, None)
        if ended is not None and waiting:
            start(ended)


if __name__ == "__main__":
    main()
