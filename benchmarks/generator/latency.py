"""The group generator measured: round trips, requests per second, and conflicts avoided by global division.

    python benchmarks/generator/latency.py [--rounds 200] [--json FILE]

Clients are threads of one process, the service runs in another; all share this machine's cores. A request's latency is
from `begin` to the answer's arrival, and includes waiting for the other members to ask, as no time is spent computing.
Waiting comes from a simulation of the pure machine: workers compute for 1 ± 10 %, a group takes 0.3; what is counted is
the time that members who have computed wait for the last one.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runtime.generator.client import GeneratorClient
from runtime.generator.keys import JobKeys
from runtime.generator.service import GeneratorService
from schedulers.protocols.base import Send
from schedulers.protocols.group_draw import GeneratorSetting
from schedulers.protocols.group_generator import Ask, Grant, GroupGenerator
from topo.strategies.generated import Division

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


def conflicts(division: Division, num_workers: int, rounds: int, slow: float) -> dict[str, float]:
    """Simulate the pure machine in virtual time; worker 0 is `slow` times slower."""
    nodes = tuple(w // 4 for w in range(num_workers))
    setting = GeneratorSetting(nodes=nodes, group_size=3, division=division, slow_threshold=4, seed=1)
    machine, chance = GroupGenerator(setting), random.Random(1)
    state, events, arrived, free_at = machine.initial(), [], {}, {}
    delayed = asked = 0
    waited, requests = 0.0, [0] * num_workers
    ready: dict[int, float] = {}
    for worker in range(num_workers):
        heapq.heappush(events, (0.0, worker, -1))
    while events and max(requests) < rounds:
        now, worker, done = heapq.heappop(events)
        state, actions = machine.handle(state, worker, Ask(requests[worker], done))
        requests[worker] += 1
        asked += 1
        compute = (slow if worker == 0 else 1.0) * chance.uniform(0.9, 1.1)
        ready[worker] = now + compute
        answers = {a.to: a.message for a in actions if isinstance(a, Send)}
        delayed += worker not in answers
        for other, answer in answers.items():
            if not isinstance(answer, Grant):
                heapq.heappush(events, (max(now, ready[other]), other, -1))
                continue
            here = arrived.setdefault(answer.seq, {})
            here[other] = max(now, ready[other])
            free_at[other] = ready[other]
            if len(here) == len(answer.members):
                end = max(here.values()) + 0.3
                for member in answer.members:
                    waited += max(here.values()) - free_at[member]
                    heapq.heappush(events, (end, member, answer.seq))
    return {"delayed": delayed / asked, "waiting_per_request": waited / asked, "requests_per_unit": asked / now}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"latency": [], "conflicts": []}
    for num_clients in (16, 64):
        for logged in (False, True):
            for number in range(options.repeat):
                place = f"/tmp/preduce-generator-{num_clients}-{number}-{time.time_ns()}.log" if logged else None
                row = latency(num_clients, options.rounds, log=place) | {"log": logged}
                result["latency"].append(row)
                print(row, flush=True)
                if place:
                    Path(place).unlink(missing_ok=True)
    for slow in (1.0, 5.0):
        for division in Division:
            row = conflicts(division, 16, 400, slow) | {"division": str(division), "slow": slow}
            result["conflicts"].append(row)
            print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
