"""A group generator whose workers are threads with real sockets; messages can be delayed, doubled and dropped."""

import contextlib
import json
import os
import random
import signal
import threading
import time

from helpers.warm import WARM
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.log import Log
from partreduce.runtime.generator.messages import ask_of, new_key
from partreduce.runtime.generator.service import GeneratorService
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import GroupGenerator
from partreduce.strategies import GroupSplit, SlowWorkerPolicy

FOUR_ON_ONE_NODE = GeneratorSetting(nodes=(0, 0, 0, 0), division=GroupSplit.GLOBAL, slow_threshold=None)


@contextlib.contextmanager
def serving(setting, **options):
    """Context manager: run a group generator in a thread; yield it, and the environment variables for workers."""
    key = new_key()
    service = GeneratorService(setting, key, **options)
    thread = threading.Thread(target=service.run, args=(600,))
    thread.start()
    try:
        yield service, {"PARTREDUCE_GENERATOR": service.address, "PARTREDUCE_GENERATOR_KEYS": key}
    finally:
        service.stop()
        thread.join(60)
        service.close()


def fall_silent(client):
    """End a client's thread without a word, as the end of a killed process or the stop of one does."""
    client._closing = True
    client._thread.join(60)


@contextlib.contextmanager
def clients_of(service, number=4, **options):
    """Context manager: clients of the first workers, which are closed."""
    with contextlib.ExitStack() as stack:
        clients = [GeneratorClient(service.address, service.key, rank, **options) for rank in range(number)]
        for client in clients:
            stack.callback(client.close)
        yield clients


def setting_of(seed, n=4):
    chance = random.Random(seed)
    return GeneratorSetting(
        nodes=tuple(w * 2 // n for w in range(n)),
        group_size=chance.choice([2, 2, 3]),
        division=chance.choice(list(GroupSplit)),
        slow_worker_policy=chance.choice(list(SlowWorkerPolicy)),
        slow_threshold=chance.choice([None, 1, 2, 4]),
        seed=seed,
        max_known=chance.choice([None, 2, 8]),
    )


def rough_wire(seed, rank, *, worst=0.004):
    """Return a client's transport that drops 15 % of messages, doubles 15 % and delays 30 %."""
    chance = random.Random(f"{seed} {rank}")

    def transport(send):
        held = []

        def rough(message):
            now = time.monotonic()
            for late in [entry for entry in held if entry[0] < now]:
                held.remove(late)
                send(late[1])
            luck = chance.random()
            if luck < 0.15:
                return
            if luck < 0.3:
                send(message)
            if luck > 0.7:
                held.append((now + chance.random() * worst, message))
            else:
                send(message)

        return rough

    return transport


class Meeting:
    """A stand-in for a collective: no member leaves before all have arrived."""

    def __init__(self):
        self.lock, self.barriers = threading.Lock(), {}

    def __call__(self, group):
        with self.lock:
            barrier = self.barriers.setdefault(group, threading.Barrier(len(group[1])))
        barrier.wait(60)


def work(address, key, rank, meet, *, rounds, pause=0.0, timeout=60.0, retry=0.03, transport=lambda send: send):
    client = GeneratorClient(address, key, rank, timeout=timeout, retry=retry, transport=transport, lease=20.0)
    try:
        for _ in range(rounds):
            client.begin()
            time.sleep(pause)
            group = client.group()
            if group is not None:
                meet(group)
        while (group := client.leave()) is not None:
            meet(group)
    finally:
        client.close()
    return client.executed


def run_workers(address, key, n, *, rounds, seed=None, slow=(), **options):
    """Run all workers as threads; return their executed groups by rank."""
    meet, results, problems = Meeting(), {}, []

    def one(rank):
        transport = (lambda send: send) if seed is None else rough_wire(seed, rank)
        pause = 0.02 if rank in slow else 0.0
        try:
            results[rank] = work(address, key, rank, meet, rounds=rounds, pause=pause, transport=transport, **options)
        except Exception as error:  # noqa: BLE001 - the caller's assertion shows it
            problems.append(f"worker {rank}: {error!r}")

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not problems, problems
    assert len(results) == n, f"workers {sorted(set(range(n)) - set(results))} hang"
    return results


def randomized_run(seed, *, n=4, rounds=5):
    """Run workers over an unreliable wire; return the started groups in order, and the executed groups by rank."""
    notes, slow = [], (random.Random(seed).randrange(n),) if seed % 3 == 0 else ()
    with serving(setting_of(seed, n), on_note=notes.append) as (service, _):
        executed = run_workers(service.address, service.key, n, rounds=rounds, seed=seed, slow=slow)
    started = [(seq, members) for kind, seq, members in notes if kind == "started"]
    return started, executed


def check_orders(started, executed):
    """Check that every worker executed exactly its groups, each once and in order of sequence numbers."""
    assert [seq for seq, _ in started] == list(dict.fromkeys(seq for seq, _ in started))
    for rank, groups in executed.items():
        assert groups == sorted((seq, members) for seq, members in started if rank in members), f"worker {rank}"


def started_by(path, setting):
    """Return the groups that a log's records start in a new machine."""
    log = Log(path)
    records = [json.loads(record) for record in log.records]
    log.close()
    machine = GroupGenerator(setting)
    state, started = machine.initial(), []
    for record in records:
        actions = ()
        if "ask" in record:
            worker, *numbers = record["ask"]
            state, actions = machine.handle(state, worker, ask_of(numbers))
        elif "restart" in record:
            state, _ = machine.restarted(state)
        started += [a.what[1:] for a in actions if hasattr(a, "what") and a.what[0] == "started"]
    return started


KILL_POINTS = [
    ("before receive", 9), ("before append", 1), ("before append", 7), ("after append", 2), ("after append", 8),
    ("before commit", 3), ("after reply", 1), ("between replies", 3),
]  # fmt: skip

CHILD = """
import os, signal, sys
from helpers.generator_rig import setting_of
from partreduce.runtime.generator.messages import read_key
from partreduce.runtime.generator.service import GeneratorService
left = {after}
def probe(point):
    global left
    if point == {point!r}:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
service = GeneratorService(setting_of({seed}), read_key({keys!r}), address={address!r}, log={log!r}, probe=probe,
                           on_note=lambda note: print("note", *note[:2], *note[2], flush=True))
print("address", service.address, "generation", service.state.generation, flush=True)
service.run(60)
"""


class ServiceProcess:
    """A generator in another process that kills itself at a named point."""

    def __init__(self, folder, *, seed, address="tcp://127.0.0.1:*", point="", after=0):
        code = CHILD.format(
            point=point, after=after, seed=seed,
            keys=str(folder / "keys"), address=address, log=str(folder / "log"),
        )  # fmt: skip
        reading, writing = os.pipe()
        self.process = WARM.start("-c", code, streams=[0, writing, 2])
        os.close(writing)
        self.output = os.fdopen(reading)
        line = self.output.readline().split()
        assert line, "it ended without its address"
        self.address, self.generation = line[1], int(line[3])

    def killed(self, seconds=30):
        """Wait for its end; return whether it was by SIGKILL."""
        return self.process.wait(seconds) == -signal.SIGKILL

    def end(self):
        self.process.kill()
        self.process.wait()
        self.output.close()
