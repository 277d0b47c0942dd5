"""Seconds and memory of one message between two workers' mailboxes, beside a bare ZeroMQ send of the same bytes.

Two processes, loopback. Each contestant moves an array from one to the other, which answers with a few bytes as soon as
it has the numbers; time is that of the round trip. Contestants take turns in an order that changes from pair to pair,
and ratios are taken within a turn. Memory is what each process has at most beyond what it had before (VmHWM of Linux),
the sent array itself not counted; every contestant is measured in processes of its own.

    python -m benchmarks.mailbox.messages [--megabytes 2 50] [--repetitions 40] [-o benchmarks/results/mailbox.md]

* bare: `send(array, copy=False)`, `recv(copy=False)`.
* as it was: the mailbox with the copies that strategies made until they sent from and received into the arrays' own
  memory: one of the sent array, one of the frame.
* views: an array that does not change until the answer is there is sent from its own memory.
* snapshots: an array that may change at once is copied into memory that is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mailbox.processes import leave, meet, memory, memory_now, store_at, together

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "benchmarks.mailbox.messages"
CONTESTANTS = ("bare", "as it was", "views", "snapshots")
WARM_UP = 3


def measure(rank: int, port: int, megabytes: float, turns: list[list[str]]) -> dict[str, Any]:
    """One of the two processes: the seconds of each turn and the memory that it needed."""
    import numpy as np
    import torch
    import zmq

    from partreduce.runtime.transport.arrays import Snapshots, frame_of, tensor_of
    from partreduce.runtime.transport.mailbox import Mailbox, Message

    store = store_at(port, rank)
    count = int(megabytes * 10**6) // 4
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    store.set(f"bare{rank}", str(pull.bind_to_random_port("tcp://127.0.0.1")))
    push.connect(f"tcp://127.0.0.1:{store.get(f'bare{1 - rank}').decode()}")
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    kept: list[Any] = []

    def deliver(message: Message) -> None:
        if rank == 0:
            came.put(None)
            return
        frame = bytearray(message.payload[0]) if message.kind == "as it was" else message.payload[0]
        kept[:] = [tensor_of(frame, torch.float32)]
        box.send(0, "answer")

    box = Mailbox(store, rank, "m", deliver, max_bytes=count * 4, timeout=60)
    box.start()
    snapshots = Snapshots()
    array = torch.ones(count) if rank == 0 else torch.ones(1)

    def bare() -> None:
        if rank == 0:
            push.send(np.asarray(array), copy=False)
            pull.recv()
        else:
            kept[:] = [torch.frombuffer(pull.recv(copy=False).buffer, dtype=torch.float32)]
            push.send(b"answer")

    def boxed(kind: str, frames: Callable[[], list[Any]]) -> Callable[[], None]:
        def move() -> None:
            if rank == 0:
                box.send(1, kind, (), frames())
                came.get()

        return move

    moves = {
        "bare": bare,
        "as it was": boxed("as it was", lambda: [frame_of(array.clone())]),
        "views": boxed("views", lambda: [frame_of(array)]),
        "snapshots": boxed("snapshots", lambda: snapshots.take([array])),
    }
    before = memory_now()
    seconds = []
    for turn in turns:
        row = {}
        for name in turn:
            start = time.perf_counter()
            moves[name]()
            row[name] = time.perf_counter() - start
        seconds.append(row)
    meet(store, rank, 2)
    result = {"seconds": seconds, "memory": memory("VmHWM") - before}
    box.close()
    context.destroy(linger=0)
    leave(store, rank, 2)
    return result


def rows_of(megabytes: float, repetitions: int) -> list[dict[str, Any]]:
    """A row for each contestant."""
    rng = random.Random(0)
    turns = [rng.sample(CONTESTANTS, len(CONTESTANTS)) for _ in range(WARM_UP + repetitions)]
    # The receiver takes part in the bare contestant only, whose turns come in the same order on both.
    seconds = together(MODULE, 2, megabytes, turns)[0]["seconds"][WARM_UP:]
    rows = []
    for name in CONTESTANTS:
        ratios = sorted(row[name] / row["bare"] for row in seconds)
        times = sorted(row[name] * 1e3 for row in seconds)
        peaks = [result["memory"] for result in together(MODULE, 2, megabytes, [[name]] * 12)]
        rows.append({
            "megabytes": megabytes, "contestant": name,
            "ms": statistics.median(times), "ms_quartiles": [times[len(times) // 4], times[3 * len(times) // 4]],
            "ratio": statistics.median(ratios),
            "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
            "sender_bytes": peaks[0], "receiver_bytes": peaks[1],
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| MB | contestant | ms [quartiles] | ÷ bare [quartiles] | sender's peak, MB | receiver's peak, MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ms_quartiles"]
        least, most = row["ratio_quartiles"]
        lines.append(
            f"| {row['megabytes']:g} | {row['contestant']} | {row['ms']:.2f} [{low:.2f}-{high:.2f}] | "
            f"{row['ratio']:.2f} [{least:.2f}-{most:.2f}] | {row['sender_bytes'] / 1e6:.1f} | "
            f"{row['receiver_bytes'] / 1e6:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[2, 50])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(measure(*json.loads(given.worker))))
        return
    load = os.getloadavg()[0]
    rows = [row for megabytes in given.megabytes for row in rows_of(megabytes, given.repetitions)]
    text = table(rows)
    print(text)
    if given.output is not None:
        head = "# A message between mailboxes beside a bare ZeroMQ send\n\n"
        source = "Written by `python -m benchmarks.mailbox.messages`"
        given.output.write_text(
            f"{head}{source} ({given.repetitions} turns, load {load:.1f} to {os.getloadavg()[0]:.1f}).\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
