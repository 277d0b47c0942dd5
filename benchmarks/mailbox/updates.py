"""What one update of Hop costs, from the live parameters to the numbers at its neighbours, beside bare transfers.

One worker and `neighbors` others, each in a process of its own, over loopback. A turn moves the worker's parameters to
all neighbours; each answers with a few bytes as soon as it has the numbers, and time is until the last answer is there.
Contestants take turns in an order that changes from turn to turn, and ratios are taken within a turn. CPU seconds are
those of all processes; unlike time, they do not depend on what else the machine does.

* zmq: a bare ZeroMQ `send(array, copy=False)` to each, `recv(copy=False)`: no copy is taken, so that the array must not
  change before the answers are there.
* tcp: the same bytes through bare sockets, received into memory that is there already.
* update: what the run-time does. One snapshot for all neighbours, a message through the mailbox to each, a place in the
  neighbour's ring, and the tensor taken out of it. Afterwards the parameters may change.

    python -m benchmarks.mailbox.updates [--megabytes 2 10 50] [--neighbors 1 3] [--repetitions 40] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mailbox.processes import leave, meet, store_at, together

if TYPE_CHECKING:
    import torch

    from partreduce.runtime.transport.mailbox import Message
    from partreduce.runtime.transport.torch_api import Store

CONTESTANTS = ("zmq", "tcp", "update")
Seconds = dict[str, tuple[float, float]]
"""By contestant: seconds of a turn, and CPU seconds in it."""
WARM_UP = 6
CAPACITY = 5


def measure(rank: int, port: int, neighbors: int, megabytes: float, turns: list[list[str]]) -> list[Seconds]:
    """One of the processes: its seconds of each turn, by contestant."""
    import torch

    torch.set_num_threads(1)
    store = store_at(port, rank)
    count = int(megabytes * 10**6) // 4
    array = torch.ones(count)
    made = {"zmq": Bare, "tcp": Sockets, "update": Updates}
    contestants = {name: made[name](store, rank, neighbors, array) for name in CONTESTANTS}
    seconds = []
    for turn in turns:
        row = {}
        for name in turn:
            start, busy = time.perf_counter(), time.process_time()
            contestants[name].move()
            row[name] = (time.perf_counter() - start, time.process_time() - busy)
        seconds.append(row)
    meet(store, rank, neighbors + 1)
    for contestant in contestants.values():
        contestant.close()
    leave(store, rank, neighbors + 1)
    return seconds


class Bare:
    """ZeroMQ and nothing else."""

    def __init__(self, store: Store, rank: int, neighbors: int, array: torch.Tensor) -> None:
        import zmq

        self.array, self.neighbors, self.rank = array, neighbors, rank
        self.context = zmq.Context()
        self.pull = self.context.socket(zmq.PULL)
        name = type(self).__name__
        store.set(name + str(rank), str(self.pull.bind_to_random_port("tcp://127.0.0.1")))
        self.push = []
        for other in range(1, neighbors + 1) if rank == 0 else [0]:
            self.push.append(self.context.socket(zmq.PUSH))
            self.push[-1].connect(f"tcp://127.0.0.1:{store.get(name + str(other)).decode()}")
        self.kept: Any = None

    def move(self) -> None:
        """One turn of this process."""
        import torch

        if self.rank == 0:
            data = self.array.numpy()
            for push in self.push:
                push.send(data, copy=False)
            for _ in self.push:
                self.pull.recv()
        else:
            self.kept = torch.frombuffer(self.pull.recv(copy=False).buffer, dtype=torch.float32)
            self.push[0].send(b"answer")

    def close(self) -> None:
        """Give the sockets back."""
        self.context.destroy(linger=0)


class Sockets:
    """TCP and nothing else, one neighbour after the other."""

    def __init__(self, store: Store, rank: int, neighbors: int, array: torch.Tensor) -> None:
        self.rank, self.data = rank, memoryview(array.numpy()).cast("B")
        self.sockets = []
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                store.set("tcp", str(server.getsockname()[1]))
                self.sockets = [server.accept()[0] for _ in range(neighbors)]
        else:
            self.sockets = [socket.create_connection(("127.0.0.1", int(store.get("tcp"))))]
        for each in self.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def move(self) -> None:
        """One turn of this process."""
        if self.rank == 0:
            for each in self.sockets:
                each.sendall(self.data)
            for each in self.sockets:
                each.recv(1)
            return
        got = 0
        while got < len(self.data):
            got += self.sockets[0].recv_into(self.data[got:], len(self.data) - got, socket.MSG_WAITALL)
        self.sockets[0].sendall(b"!")

    def close(self) -> None:
        """Give the sockets back."""
        for each in self.sockets:
            each.close()


class Updates:
    """What the run-time does."""

    def __init__(self, store: Store, rank: int, neighbors: int, array: torch.Tensor) -> None:
        from partreduce.runtime.transport.mailbox import Mailbox
        from partreduce.runtime.transport.payload_rings import Arrival, PayloadRings
        from partreduce.runtime.transport.updates import Layout, UpdateSender

        self.rank, self.arrays, self.neighbors, self.step = rank, [array], neighbors, 0
        layout = Layout(self.arrays)
        self.complete = Arrival.KEPT
        self.rings = PayloadRings(rank, {0: CAPACITY} if rank else {}, layout)
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        bound = layout.bound([CAPACITY], 16)
        self.box = Mailbox(store, rank, "m", self.deliver, max_bytes=array.nbytes, timeout=60, bound=bound)
        self.sender = UpdateSender(self.box, layout, capacity=CAPACITY)
        self.box.start()
        self.kept: Any = None

    def deliver(self, message: Message) -> None:
        """In the receiving thread."""
        if message.kind == "update":
            part, step = message.numbers
            if self.rings.receive(message.source, step, part, message.payload) is not self.complete:
                return
        self.came.put(message.source)

    def move(self) -> None:
        """One turn of this process."""
        if self.rank == 0:
            self.sender.send("update", self.arrays, dict.fromkeys(range(1, self.neighbors + 1), (self.step,)))
            for _ in range(self.neighbors):
                self.came.get()
        else:
            self.came.get()
            self.kept = self.rings.take(0, self.step)
            self.rings.retire(self.step + 1)
            self.box.send(0, "token", (1,), urgent=True)
        self.step += 1

    def close(self) -> None:
        """End the side thread."""
        self.box.close()


def run(neighbors: int, megabytes: float, turns: list[list[str]]) -> list[Seconds]:
    """The first process's seconds of each turn, and the CPU seconds of all."""
    results = together("benchmarks.mailbox.updates", neighbors + 1, neighbors, megabytes, turns)
    return [
        {name: (first[name][0], sum(row[name][1] for row in rows)) for name in first}
        for first, rows in zip(results[0], zip(*results, strict=True), strict=True)
    ]


def rows_of(neighbors: int, megabytes: float, repetitions: int) -> list[dict[str, Any]]:
    """A row for each contestant."""
    rng = random.Random(0)
    turns = [rng.sample(CONTESTANTS, len(CONTESTANTS)) for _ in range(WARM_UP + repetitions)]
    seconds = run(neighbors, megabytes, turns)[WARM_UP:]
    rows = []
    for name in CONTESTANTS:
        row: dict[str, Any] = {"megabytes": megabytes, "neighbors": neighbors, "contestant": name}
        row["ms"] = _spread([turn[name][0] * 1e3 for turn in seconds])
        for base in ("zmq", "tcp"):
            row[base] = _spread([turn[name][0] / turn[base][0] for turn in seconds])
        row["cpu"] = statistics.fmean(turn[name][1] * 1e3 for turn in seconds)
        row["cpu ratio"] = row["cpu"] / statistics.fmean(turn["zmq"][1] * 1e3 for turn in seconds)
        rows.append(row)
    return rows


def _spread(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    ordered = sorted(values)
    return [ordered[len(values) // 4], statistics.median(ordered), ordered[3 * len(values) // 4]]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| MB | neighbours | contestant | ms [quartiles] | ÷ zmq [quartiles] | ÷ tcp [quartiles] | CPU ms | ÷ zmq |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = " | ".join("{1:.2f} [{0:.2f}-{2:.2f}]".format(*row[key]) for key in ("ms", "zmq", "tcp"))
        busy = f"{row['cpu']:.2f} | {row['cpu ratio']:.2f}"
        lines.append(f"| {row['megabytes']:g} | {row['neighbors']} | {row['contestant']} | {cells} | {busy} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[2, 10, 50])
    parser.add_argument("--neighbors", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(measure(*json.loads(given.worker))))
        return
    load = os.getloadavg()[0]
    rows = [row for n in given.neighbors for mb in given.megabytes for row in rows_of(n, mb, given.repetitions)]
    text = table(rows)
    print(text)
    if given.output is not None:
        head = "# An update of Hop beside bare transfers of the same bytes\n\n"
        source = "Written by `python -m benchmarks.mailbox.updates`"
        given.output.write_text(
            f"{head}{source} ({given.repetitions} turns, load {load:.1f} to {os.getloadavg()[0]:.1f}).\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
