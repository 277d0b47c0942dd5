"""The group generator measured: round trips and requests per second.

    python -m benchmarks.generator.latency

Clients are threads of one process, the service runs in another; all share this machine's cores. A request's latency is
from `begin` to the answer's arrival, and includes waiting for the other members to ask, as no time is spent computing.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.keys import JobKeys
from partreduce.runtime.generator.service import GeneratorService
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.topo.strategies.generated import Division

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def serve(keys: JobKeys, setting: GeneratorSetting, log: str | None, pipe: Connection) -> None:
    service = GeneratorService(setting, keys, log=log)
    pipe.send(service.address)
    service.run(300)
    service.close()


def latency(num_clients: int, rounds: int, *, log: str | None) -> dict[str, float]:
    """Every client asks as fast as it can; groups take no time, as their members meet at once."""
    keys = JobKeys.make()
    setting = GeneratorSetting(nodes=tuple(w // 4 for w in range(num_clients)), group_size=2, division=Division.GLOBAL,
                               slow_threshold=None)  # fmt: skip
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(keys, setting, log, there))
    process.start()
    address = here.recv()
    taken: list[float] = []

    def one(rank: int) -> None:
        client = GeneratorClient(address, keys.for_workers(), rank)
        for _ in range(rounds):
            began = time.perf_counter()
            client.begin()
            client.group()
            taken.append(time.perf_counter() - began)
        while client.leave() is not None:
            pass
        client.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(num_clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    process.join(10)
    process.terminate()
    taken.sort()
    return {
        "clients": num_clients,
        "median_ms": 1e3 * statistics.median(taken),
        "p99_ms": 1e3 * taken[int(0.99 * len(taken))],
        "requests_per_s": len(taken) / seconds,
    }


def all_latencies(rounds: int, repeat: int) -> list[dict[str, Any]]:
    """16 and 64 clients, without and with a log; the median run of each by its median latency."""
    rows = []
    for num_clients in (16, 64):
        for logged in (False, True):
            runs = []
            for _ in range(repeat):
                with tempfile.TemporaryDirectory() as folder:
                    place = str(Path(folder) / "log") if logged else None
                    runs.append(latency(num_clients, rounds, log=place) | {"log": logged})
            runs.sort(key=lambda row: row["median_ms"])
            spread = [runs[0]["median_ms"], runs[-1]["median_ms"]]
            rows.append(runs[len(runs) // 2] | {"median_ms_of_runs": spread})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    all_latencies(60, 3)
