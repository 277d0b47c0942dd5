"""The memory of a worker whose update queues are full, beside what was proved: capacity times model, and a constant.

Hop's ring-based graph of 16 workers (both neighbours on the ring and the worker opposite), tokens with `max_ig`. One
process is worker 0, with rings of the proved capacities; another one plays its three in-neighbours, who send as many
updates as are proved to be ahead of it, again and again. Memory is resident memory beyond what the process had before
the first update, when all places are full, and at most (VmHWM) while they are filled and emptied.

    python -m benchmarks.mailbox.memory [--megabytes 2 10 40] [--max-ig 4] [--rounds 8]
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from preduce.runtime.transport.mailbox import Message

WORKERS = 16


def measure(rank: int, port: int, megabytes: float, max_ig: int, rounds: int) -> dict[str, Any]:
    """Worker 0 if `rank` is 0, otherwise all its in-neighbours."""
    import torch
    import torch.distributed as dist

    from preduce.runtime.transport.mailbox import Mailbox
    from preduce.runtime.transport.payload_rings import Arrival, PayloadRings
    from preduce.runtime.transport.updates import Layout, UpdateSender, add_updates
    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.topo.strategies.gap import Gap
    from preduce.verify.gaps.one_worker import capacities_of

    edges = [(u, (u + hop) % WORKERS) for u in range(WORKERS) for hop in (1, WORKERS - 1, WORKERS // 2)]
    places = capacities_of(Digraph.of(WORKERS, edges), Gap(max_ig=max_ig), 0).slots
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=timedelta(seconds=60))
    arrays = [torch.ones(int(megabytes * 10**6) // 4)]
    layout = Layout(arrays)
    rings = PayloadRings(0, places, layout)
    full, emptied = threading.Semaphore(0), threading.Semaphore(0)

    def deliver(message: Message) -> None:
        if message.kind == "retired":
            emptied.release()
            return
        part, step = message.numbers
        if rings.receive(message.source, step, part, message.payload) is Arrival.KEPT:
            full.release()

    bound = layout.bound(list(places.values()), 8)
    boxes = {
        worker: Mailbox(store, worker, "m", deliver, max_bytes=layout.num_bytes, timeout=60, bound=bound)
        for worker in ([0] if rank == 0 else places)
    }
    for box in boxes.values():
        box.start()
    result: dict[str, Any] = {"places": sum(places.values()), "model": layout.num_bytes}
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    if rank == 0:
        for round_ in range(rounds):
            for _ in range(sum(places.values())):
                full.acquire()
            if round_ in {0, rounds - 1}:
                result["first" if round_ == 0 else "last"] = _memory("VmRSS") - before
                result["counted"] = rings.num_bytes
            for ahead in range(max(places.values())):
                step = round_ * max(places.values()) + ahead
                updates = [rings.take(source, step) for source in places if step in rings.steps(source)]
                add_updates(arrays, 0.25, updates, [0.25] * len(updates), layout)
                del updates
            rings.retire((round_ + 1) * max(places.values()))
            for source in places:
                boxes[0].send(source, "retired", urgent=True)
        result["peak"] = _memory("VmHWM") - before
        store.set("done", "")
    else:
        senders = {worker: UpdateSender(box, layout, capacity=max(places.values())) for worker, box in boxes.items()}
        for round_ in range(rounds):
            for worker, capacity in places.items():
                for ahead in range(capacity):
                    senders[worker].send("update", arrays, {0: (round_ * max(places.values()) + ahead,)})
            for _ in places:
                emptied.acquire()
        store.wait(["done"])
        result["peak"] = _memory("VmHWM") - before
        result["counted"] = sum(sender.num_bytes for sender in senders.values())
    for box in boxes.values():
        box.close()
    store.set(f"closed{rank}", "")
    if rank == 0:
        store.wait(["closed1"])
        time.sleep(0.1)
    return result


def _memory(line: str) -> int:
    """Bytes, from a line of Linux's account of this process."""
    text = Path("/proc/self/status").read_text()
    return next(int(row.split()[1]) for row in text.splitlines() if row.startswith(line + ":")) * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[2, 10, 40])
    parser.add_argument("--max-ig", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(measure(*json.loads(given.worker))))
        return
    print("| model, MB | places | proved, MB | counted, MB | resident, first and last, MB | peak, MB | beyond, MB |")
    print("|---|---|---|---|---|---|---|")
    for megabytes in given.megabytes:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.mailbox.memory", "--worker",
                 json.dumps([rank, port, megabytes, given.max_ig, given.rounds])],
                stdout=subprocess.PIPE, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        receiver, sender = (json.loads(each.communicate(timeout=300)[0]) for each in running)
        proved = receiver["places"] * receiver["model"]
        cells = [f"{value / 1e6:.1f}" for value in (proved, receiver["counted"])]
        resident = f"{receiver['first'] / 1e6:.1f}, {receiver['last'] / 1e6:.1f}"
        peak, beyond = receiver["peak"] / 1e6, (receiver["peak"] - proved) / 1e6
        print(
            f"| {megabytes:g} | {receiver['places']} | {' | '.join(cells)} | {resident} | {peak:.1f} | {beyond:.1f} |"
        )
        print(f"  three senders' snapshots: counted {sender['counted'] / 1e6:.1f}, peak {sender['peak'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
