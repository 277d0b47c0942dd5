"""The memory of a worker whose update queues are full, beside what was proved: capacity times model, and a constant.

Hop's ring-based graph of 16 workers (both neighbours on the ring and the worker opposite), tokens with `max_ig`. One
process is worker 0, with rings of the proved capacities; another one plays its three in-neighbours, who send as many
updates as are proved to be ahead of it, again and again. Memory is resident memory beyond what the process had before
the first update, when all places are full, and at most (VmHWM) while they are filled and emptied.

    python -m benchmarks.mailbox.memory [--megabytes 2 10 40] [--max-ig 4] [--backup 0 1] [--rounds 8]
"""

from __future__ import annotations

import argparse
import json
import threading
from typing import TYPE_CHECKING, Any

from benchmarks.mailbox.processes import leave, meet, memory, memory_now, store_at, together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from partreduce.runtime.transport.mailbox import Mailbox, Message
    from partreduce.runtime.transport.updates import Layout

WORKERS = 16
RESIDENT = ("first", "last", "peak")
"""What is said beyond what the process had before."""


def measure(rank: int, port: int, megabytes: float, setting: dict[str, int], rounds: int) -> dict[str, Any]:
    """Worker 0 if `rank` is 0, otherwise all its in-neighbours."""
    import torch

    from partreduce.runtime.transport.mailbox import Mailbox
    from partreduce.runtime.transport.updates import Layout
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps.one_worker import capacities_of

    edges = [(u, (u + hop) % WORKERS) for u in range(WORKERS) for hop in (1, WORKERS - 1, WORKERS // 2)]
    places = dict(capacities_of(Digraph.of(WORKERS, edges), Gap(**setting), 0).slots)
    store = store_at(port, rank)
    arrays = [torch.ones(int(megabytes * 10**6) // 4)]
    layout = Layout(arrays)
    bound = layout.bound(list(places.values()), 8)
    part = Receiver(places, layout) if rank == 0 else Senders()
    boxes = {
        worker: Mailbox(store, worker, "m", part.deliver, max_bytes=layout.num_bytes, timeout=60, bound=bound)
        for worker in ([0] if rank == 0 else places)
    }
    for box in boxes.values():
        box.start()
    before = memory_now()
    result = part.work(boxes, arrays, layout, places, rounds)
    result = {name: value - before if name in RESIDENT else value for name, value in result.items()}
    meet(store, rank, 2)
    for box in boxes.values():
        box.close()
    leave(store, rank, 2)
    return result


class Receiver:
    """Worker 0, who lets its rings fill up and then empties them."""

    def __init__(self, places: Mapping[int, int], layout: Layout) -> None:
        from partreduce.runtime.transport.payload_rings import PayloadRings

        self.rings = PayloadRings(0, places, layout)
        self.full = threading.Semaphore(0)

    def deliver(self, message: Message) -> None:
        """In the receiving thread."""
        from partreduce.runtime.transport.payload_rings import Arrival

        part, step = message.numbers
        if self.rings.receive(message.source, step, part, message.payload) is Arrival.KEPT:
            self.full.release()

    def work(
        self,
        boxes: Mapping[int, Mailbox],
        arrays: Sequence[torch.Tensor],
        layout: Layout,
        places: Mapping[int, int],
        rounds: int,
    ) -> dict[str, int]:
        """Fill and empty the rings; bytes of memory and of payloads."""
        from partreduce.runtime.transport.updates import add_updates

        result = {"places": sum(places.values()), "model": layout.num_bytes}
        most = max(places.values())
        for round_ in range(rounds):
            for _ in range(sum(places.values())):
                self.full.acquire()
            result["last"] = memory("VmRSS")
            result.setdefault("first", result["last"])
            result["counted"] = self.rings.num_bytes
            for step in range(round_ * most, (round_ + 1) * most):
                updates = [self.rings.take(source, step) for source in places if step in self.rings.steps(source)]
                add_updates(arrays, updates, [0.25] * len(updates), layout)
                del updates
            self.rings.retire((round_ + 1) * most)
            for source in places:
                boxes[0].send(source, "retired", urgent=True)
        return {**result, "peak": memory("VmHWM")}


class Senders:
    """The in-neighbours, each as far ahead as it may be."""

    def __init__(self) -> None:
        self.emptied = threading.Semaphore(0)

    def deliver(self, message: Message) -> None:  # noqa: ARG002 - there is one kind
        """In the receiving threads."""
        self.emptied.release()

    def work(
        self,
        boxes: Mapping[int, Mailbox],
        arrays: Sequence[torch.Tensor],
        layout: Layout,
        places: Mapping[int, int],
        rounds: int,
    ) -> dict[str, int]:
        """Send; bytes of memory and of snapshots."""
        from partreduce.runtime.transport.updates import UpdateSender

        most = max(places.values())
        senders = {worker: UpdateSender(box, layout, capacity=most) for worker, box in boxes.items()}
        for round_ in range(rounds):
            for worker, capacity in places.items():
                for ahead in range(capacity):
                    senders[worker].send("update", arrays, {0: (round_ * most + ahead,)})
            for _ in places:
                self.emptied.acquire()
        return {"counted": sum(sender.num_bytes for sender in senders.values()), "peak": memory("VmHWM")}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[2, 10, 40])
    parser.add_argument("--max-ig", type=int, default=4)
    parser.add_argument("--backup", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(measure(*json.loads(given.worker))))
        return
    print("| backup | model, MB | places | proved, MB | counted, MB | resident, first, last | peak, MB | beyond, MB |")
    print("|---|---|---|---|---|---|---|---|")
    senders = []
    for backup in given.backup:
        for megabytes in given.megabytes:
            setting = {"max_ig": given.max_ig, "backup": backup}
            receiver, sender = together("benchmarks.mailbox.memory", 2, megabytes, setting, given.rounds)
            proved = receiver["places"] * receiver["model"]
            numbers = [proved, receiver["counted"], receiver["first"], receiver["last"], receiver["peak"]]
            proved_mb, counted, first, last, peak = (f"{number / 1e6:.1f}" for number in numbers)
            beyond = f"{(receiver['peak'] - proved) / 1e6:.1f}"
            row = [backup, f"{megabytes:g}", receiver["places"], proved_mb, counted, f"{first}, {last}", peak, beyond]
            print(f"| {' | '.join(map(str, row))} |")
            senders.append((proved_mb, f"{sender['counted'] / 1e6:.1f}", f"{sender['peak'] / 1e6:.1f}"))
    print("Snapshots of the three senders: proved, counted and peak, MB:", "; ".join(map(" ".join, senders)))


if __name__ == "__main__":
    main()
