"""How long a token takes while updates are under way to the same worker, on a connection of its own and behind them.

Two processes, loopback. One sends updates as fast as the other takes them, never more than the capacity of a ring on
their way, and a token now and then; a token's time is from its sending to its delivery (both read one clock).

    python -m benchmarks.mailbox.tokens [--megabytes 10] [--updates 40]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.mailbox.processes import leave, meet, store_at, together

if TYPE_CHECKING:
    from partreduce.runtime.transport.mailbox import Message

CAPACITY = 5
TOKENS = 4
"""For each update."""


def measure(rank: int, port: int, megabytes: float, updates: int) -> dict[str, list[float]]:
    """One process; of the receiving one the milliseconds of the tokens of either way."""
    import torch

    from partreduce.runtime.transport.mailbox import Mailbox
    from partreduce.runtime.transport.payload_rings import Arrival, PayloadRings
    from partreduce.runtime.transport.updates import Layout, UpdateSender

    store = store_at(port, rank)
    arrays = [torch.ones(int(megabytes * 10**6) // 4)]
    layout = Layout(arrays)
    rings = PayloadRings(rank, {0: CAPACITY}, layout)
    room = threading.Semaphore(CAPACITY)
    took: dict[str, list[float]] = {"behind": [], "urgent": []}
    finished = threading.Event()

    def deliver(message: Message) -> None:
        if rank == 0:
            room.release()
        elif message.kind != "update":
            took[message.kind].append((time.monotonic_ns() - message.numbers[0]) / 1e6)
        else:
            part, step = message.numbers
            if rings.receive(0, step, part, message.payload) is Arrival.KEPT:
                rings.take(0, step)
                rings.retire(step + 1)
                box.send(0, "retired", urgent=True)
                if step + 1 == 2 * updates:
                    finished.set()

    bound = layout.bound([CAPACITY], 2 * TOKENS * CAPACITY + 64)
    box = Mailbox(store, rank, "t", deliver, max_bytes=layout.num_bytes, timeout=60, bound=bound)
    box.start()
    if rank == 0:
        sender = UpdateSender(box, layout, capacity=CAPACITY)
        for step in range(2 * updates):
            room.acquire()
            sender.send("update", arrays, {1: (step,)})
            urgent = step % 2 == 1
            for _ in range(TOKENS):
                box.send(1, "urgent" if urgent else "behind", (time.monotonic_ns(),), urgent=urgent)
    else:
        finished.wait(120)
        time.sleep(0.2)
    meet(store, rank, 2)
    box.close()
    leave(store, rank, 2)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(measure(*json.loads(given.worker))))
        return
    took = together("benchmarks.mailbox.tokens", 2, given.megabytes, given.updates)[1]
    for way, times in took.items():
        low, middle, high = statistics.quantiles(times, n=4)
        print(f"{way}: {middle:.2f} ms [{low:.2f}-{high:.2f}], at most {max(times):.2f}, of {len(times)} tokens")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
