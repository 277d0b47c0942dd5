"""What the run-time's ways of moving numbers cost beside bare ones of the same bytes, on this machine's loopback.

    python -m benchmarks.transport p_reduce -o benchmarks/results/overhead.md [--workers 2 4] [--megabytes 8 40 160]
    python -m benchmarks.transport sums -o benchmarks/results/codecs.md [--workers 16] [--megabytes 2.19]
    python -m benchmarks.transport messages -o benchmarks/results/mailbox.md [--workers 2 4] [--megabytes 2 10 50]

* p_reduce: a P-Reduce of all workers beside a bare `all_reduce` on the same group.
* sums: every form and codec of a sum beside the fp32 ring. Over shaped links: `python -m benchmarks.papers.sums`.
* messages: what worker 0 sends to each of the others, who answer as soon as they have the numbers: by ZeroMQ and TCP
  and nothing else, by the mailbox from the array's own memory, and as Hop's update (one snapshot for all, after which
  the parameters may change, and a place in the receiver's ring).

All contestants are set up in the same processes and take turns; ratios are taken turn by turn.
"""

from __future__ import annotations

import os
import queue
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kit import Way, command, machine, middle, on_workers, parser, ratios, spans, table, take_turns, write
from partreduce.topo.strategies.axes import Codec, CodecScope, Form, How

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.mailbox import Message

    Meet = Callable[[float], float]

PLAIN = "flat ring, fp32"
ACROSS = CodecScope.ACROSS_NODES
SUMS = {
    PLAIN: How(),
    "flat ring, float16": How(codec=Codec.FLOAT16),
    "flat ring, bfloat16": How(codec=Codec.BFLOAT16),
    "flat, 8 bit": How(codec=Codec.INT8),
    "hierarchical, fp32": How(form=Form.HIERARCHICAL),
    "hierarchical, float16": How(form=Form.HIERARCHICAL, codec=Codec.FLOAT16),
    "hierarchical, 8 bit": How(form=Form.HIERARCHICAL, codec=Codec.INT8),
    "hierarchical, bfloat16 across nodes": How(form=Form.HIERARCHICAL, codec=Codec.BFLOAT16, where=ACROSS),
    "hierarchical, 8 bit across nodes": How(form=Form.HIERARCHICAL, codec=Codec.INT8, where=ACROSS),
}
TIMEOUT = timedelta(seconds=60)
CAPACITY = 5
"""Updates that a neighbour's ring holds."""


def joined() -> tuple[GlooWorld, Meet]:
    """This worker's world, and how it waits for all others."""
    import torch

    from partreduce.runtime.transport.gloo import GlooWorld
    from partreduce.runtime.transport.rendezvous import connect_store

    world = GlooWorld(connect_store(TIMEOUT), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), TIMEOUT)
    everyone = world.create(tuple(range(world.size)), name="meet")

    def meet(word: float) -> float:
        said = torch.tensor([word])
        everyone.all_reduce(said).wait()
        return float(said)

    return world, meet


def p_reduce(world: GlooWorld, megabytes: float) -> dict[str, Way]:
    """Both write their array before the clock starts, as an optimizer's step does."""
    import torch

    from partreduce.runtime.averaging.bucket import Bucket
    from partreduce.runtime.averaging.commit import commit_mean
    from partreduce.runtime.averaging.reducer import Reducer
    from partreduce.runtime.liveness.heartbeat import Heartbeat
    from partreduce.runtime.recorder import Recorder
    from partreduce.topo.phase import Group

    everyone = Group(tuple(range(world.size)))
    group = world.create(everyone.members)
    count = int(megabytes * 10**6) // 64 * 16
    bucket = Bucket(torch.device("cpu"), torch.float32, count, torch.rand(count), length=count)
    plain = torch.rand(count)
    heartbeat = Heartbeat(world.store, world.rank, "b", beats=False)
    reducer = Reducer(world, [bucket], Recorder(world.rank), heartbeat, key="b", timeout=120)

    def reduce(step: int) -> None:
        reduction = reducer.begin("average", step, step, everyone)
        reducer.wait(reduction)
        reducer.commit(reduction, lambda _, one, sums, ok: commit_mean(one, sums, 1.0, ok, swap=True))

    def ours(turn: int) -> Callable[[], object]:
        bucket.flat.fill_(1.0)
        return lambda: reduce(turn + 2)

    def bare(_: int) -> Callable[[], object]:
        plain.fill_(1.0)
        return lambda: group.all_reduce(plain).wait()

    return {"bare": bare, "P-Reduce": ours}


def sums(
    world: GlooWorld, megabytes: float, num_nodes: int, hows: Mapping[str, How], errors: dict[str, float] | None = None
) -> dict[str, Way]:
    """Sums by the communicators alone; `errors` gets how far each is from the exact one, relatively."""
    import torch

    from partreduce.runtime.codecs.coding import Coding
    from partreduce.runtime.transport.hierarchical import formed
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    cluster = Cluster.regular(num_nodes, world.size // num_nodes)
    given = torch.randn(int(megabytes * 10**6) // 4, generator=torch.Generator().manual_seed(world.rank))
    groups = {}
    for name, how in hows.items():
        of_form = formed(world, how.form, cluster)
        of_form.prepare(Schedule("sums", cluster, AllReduce(how=how)))
        groups[name] = of_form.everyone()
    exact = given.double()
    groups[PLAIN].all_reduce(exact).wait()

    def way(name: str, how: How) -> Way:
        def prepared(turn: int) -> Callable[[], object]:
            array = given.clone()

            def add_up() -> None:
                groups[name].all_reduce(array, None if how.codec is Codec.NONE else Coding(how, (turn, 0))).wait()
                if errors is not None and turn < 0:
                    errors[name] = float((array - exact).norm() / exact.norm())

            return add_up

        return prepared

    return {name: way(name, how) for name, how in hows.items()}


def messages(world: GlooWorld, megabytes: float) -> dict[str, Way]:
    """Worker 0 sends to all others, and waits for their answers."""
    import torch

    array = torch.ones(int(megabytes * 10**6) // 4)

    def way(move: Callable[[], None]) -> Way:
        return lambda _: move

    kinds = {"zmq": _Bare, "tcp": _Sockets, "mailbox": _Boxes, "update": _Updates}
    return {name: way(kind(world, array).move) for name, kind in kinds.items()}


class _Bare:
    def __init__(self, world: GlooWorld, array: torch.Tensor) -> None:
        import zmq

        self.array, self.rank = array, world.rank
        context = zmq.Context.instance()
        self.pull = context.socket(zmq.PULL)
        world.store.set(f"zmq{world.rank}", str(self.pull.bind_to_random_port("tcp://127.0.0.1")))
        self.push = []
        for other in range(1, world.size) if world.rank == 0 else [0]:
            self.push.append(context.socket(zmq.PUSH))
            self.push[-1].connect(f"tcp://127.0.0.1:{world.store.get(f'zmq{other}').decode()}")
        self.kept: Any = None

    def move(self) -> None:
        import torch

        if self.rank:
            self.kept = torch.frombuffer(self.pull.recv(copy=False).buffer, dtype=torch.float32)
            self.push[0].send(b"answer")
            return
        for push in self.push:
            push.send(self.array.numpy(), copy=False)
        for _ in self.push:
            self.pull.recv()


class _Sockets:
    """One neighbour after the other, into memory that is there already."""

    def __init__(self, world: GlooWorld, array: torch.Tensor) -> None:
        self.rank, self.data = world.rank, memoryview(array.numpy()).cast("B")
        if world.rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                world.store.set("tcp", str(server.getsockname()[1]))
                self.sockets = [server.accept()[0] for _ in range(world.size - 1)]
        else:
            self.sockets = [socket.create_connection(("127.0.0.1", int(world.store.get("tcp"))))]
        for each in self.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def move(self) -> None:
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


class _Boxes:
    """A message from the array's own memory, which does not change until the answer is there."""

    def __init__(self, world: GlooWorld, array: torch.Tensor, **bound: Any) -> None:  # noqa: ANN401 - of Mailbox
        from partreduce.runtime.transport.mailbox import Mailbox

        self.rank, self.others, self.array = world.rank, range(1, world.size), array
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        name = type(self).__name__
        self.box = Mailbox(world.store, world.rank, name, self.deliver, max_bytes=array.nbytes, timeout=60, **bound)
        self.box.start()

    def deliver(self, message: Message) -> None:
        self.came.put(message)

    def move(self) -> None:
        from partreduce.runtime.transport.arrays import frame_of

        if self.rank:
            self.came.get()
            self.box.send(0, "answer")
            return
        for other in self.others:
            self.box.send(other, "message", (), [frame_of(self.array)])
        for _ in self.others:
            self.came.get()


class _Updates(_Boxes):
    def __init__(self, world: GlooWorld, array: torch.Tensor) -> None:
        from partreduce.runtime.transport.payload_rings import Arrival, PayloadRings
        from partreduce.runtime.transport.updates import Layout, UpdateSender

        layout, self.step, self.kept_word = Layout([array]), 0, Arrival.KEPT
        self.rings = PayloadRings(world.rank, {0: CAPACITY} if world.rank else {}, layout)
        super().__init__(world, array, bound=layout.bound([CAPACITY], 16))
        self.sender = UpdateSender(self.box, layout, capacity=CAPACITY)

    def deliver(self, message: Message) -> None:
        if message.kind == "update":
            part, step = message.numbers
            if self.rings.receive(message.source, step, part, message.payload) is not self.kept_word:
                return
        self.came.put(message)

    def move(self) -> None:
        if self.rank == 0:
            self.sender.send("update", [self.array], dict.fromkeys(self.others, (self.step,)))
            for _ in self.others:
                self.came.get()
        else:
            self.came.get()
            self.rings.take(0, self.step)
            self.rings.retire(self.step + 1)
            self.box.send(0, "token", (1,), urgent=True)
        self.step += 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `what` compares, and with whom; `base` names those that ratios are over."""

    title: str
    workers: tuple[int, ...]
    megabytes: tuple[float, ...]
    base: tuple[str, ...]


COMPARISONS = {
    "p_reduce": Comparison("P-Reduce beside a bare all_reduce", (2, 4), (8, 40, 160), ("bare",)),
    "sums": Comparison("Coded sums on loopback", (16,), (2.192296,), (PLAIN,)),
    "messages": Comparison("Messages and updates beside bare transfers", (2, 4), (2, 10, 50), ("zmq", "tcp")),
}


def measure(what: str, megabytes: float, num_nodes: int, turns: int) -> dict[str, Any]:
    """One worker's part."""
    world, meet = joined()
    errors: dict[str, float] = {}
    if what == "sums":
        ways = sums(world, megabytes, num_nodes, SUMS, errors)
    else:
        ways = (p_reduce if what == "p_reduce" else messages)(world, megabytes)
    return {"times": take_turns(ways, meet, turns), "errors": errors}


def kernels(megabytes: float, repetitions: int = 40) -> dict[str, float]:
    """Milliseconds of encoding and decoding on one thread, the least of some runs."""
    import torch

    from partreduce.runtime.codecs.eight_bits import EightBits
    from partreduce.topo.codec_numbers import int8_bytes

    torch.set_num_threads(1)
    count = int(megabytes * 10**6) // 4
    values, short = torch.randn(count), torch.empty(count, dtype=torch.float16)
    codec, code = EightBits(256), torch.empty(int8_bytes(count, 256), dtype=torch.uint8)
    actions: dict[str, Callable[[], object]] = {
        "float16, encode": lambda: short.copy_(values),
        "float16, decode": lambda: values.copy_(short),
        "int8, encode": lambda: codec.encode(values, code),
        "int8, decode": lambda: codec.decode(code, values),
    }

    def timed(action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return 1e3 * (time.perf_counter() - start)

    return {name: min(timed(action) for _ in range(repetitions)) for name, action in actions.items()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=list(COMPARISONS))
    arguments.add_argument("--workers", type=int, nargs="+")
    arguments.add_argument("--nodes", type=int, default=4, help="that the workers of `sums` stand for")
    arguments.add_argument("--megabytes", type=float, nargs="+")
    arguments.add_argument("--turns", type=int, default=15)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    asked = COMPARISONS[chosen.what]
    alone = kernels(asked.megabytes[0]) if chosen.what == "sums" else {}
    rows = []
    for workers in chosen.workers or asked.workers:
        for megabytes in chosen.megabytes or asked.megabytes:
            said = on_workers(
                lambda megabytes=megabytes: measure(chosen.what, megabytes, chosen.nodes, chosen.turns), workers
            )
            found = spans([worker["times"] for worker in said])
            for name, ms in found.items():
                beside = [middle(ratios(found, name, base), quarters=True) for base in asked.base]
                errors = [f"{max(worker['errors'][name] for worker in said):.1e}"] if said[0]["errors"] else []
                rows.append([workers, f"{megabytes:g}", name, middle(ms, ".1f"), *beside, *errors])
    head = ["workers", "MB", "what", "ms [least-most]", *(f"÷ {base} [quarters]" for base in asked.base)]
    head += ["relative error"] if alone else []
    about = f"`{command('transport')}`; {machine()}. Medians; ratios are those of one turn, and above 1 slower."
    parts = [about, table(head, rows)]
    if alone:
        parts += ["One thread, nothing sent, the least of 40 runs:"]
        parts += [table(["kernel", "ms"], [(name, f"{ms:.2f}") for name, ms in alone.items()])]
    write(chosen.output, asked.title, *parts)


if __name__ == "__main__":
    main()
