"""Jobs in which one worker waits for another while both are suspended, each job in its own processes.

`python -m helpers.suspended TIMEOUT NAME …` runs the named jobs and prints as JSON how they ended. First the other
worker is stopped by SIGSTOP, so that the waiter has to wait; then the waiter, for longer than its timeout; then both
continue, as a laptop does after its lid was closed. The jobs run at the same time, but start two at a time: a worker
that gets no processor for its timeout while all others start would rightly blame its peer.
"""

# ruff: noqa: T201 - its output is what the tests read
import json
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from fractions import Fraction

import torch

from benchmarks.faults.processes import look_at
from helpers.scenarios import network
from helpers.signs import Signs
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.messages import key_in, new_key
from partreduce.runtime.generator.service import GeneratorService
from partreduce.runtime.launcher.process_cleanup import die_with_parent
from partreduce.runtime.launcher.processes import import_once
from partreduce.runtime.transport.mailbox import Bound, Mailbox
from partreduce.runtime.transport.store import Notes, fresh_line
from partreduce.runtime.transport.torch_api import TCPStore
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting

AT, STEPS = 20, 60
"""The step in which the other worker is stopped, and the number of steps."""
STILL_SECONDS = 0.7
"""A waiter without progress for this long is taken to wait."""
LONGER = 2.0
"""Seconds for which the waiter is stopped in addition to its timeout."""
LIMIT = 240.0
"""Most seconds until a job is suspended, and from its resumption to its end."""
STARTING = 2
"""Most jobs that start at the same time."""

PAIR = Cluster.regular(1, 2)
EDGES = st.Round.from_edges(2, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))])
SCHEDULES = {
    "all-reduce": lambda: st.AllReduce(),
    "neighbors": lambda: st.NeighborAveraging(rounds=(EDGES,)),
    "gap": lambda: st.NeighborAveraging(rounds=(EDGES,), sync=st.IterationGap(max_ig=2)),
    "quorum": lambda: st.AllReduce(sync=st.PartialAllReduce(quorum=st.QuorumStart.SOLO)),
    "pairwise": lambda: st.Pairwise(active=(0,)),
    "asynchronous server": lambda: st.Server(hosts=(1,), synchronous=False),
}


class Job:
    """The two processes of a job, and the waiter's progress in shared memory."""

    def __init__(self, name, timeout):
        self.name, self.timeout, self.steps = name, timeout, STEPS
        self._shared = mmap.mmap(-1, 16)
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the job
        self.pids, self.was_suspended, self.store = {}, False, None

    def moved(self):
        """Count progress; the waiter calls this between two waits."""
        self._shared[0] = (self._shared[0] + 1) % 256

    @property
    def place(self):
        return self._shared[0]

    def fork(self, role, action):
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(parent)
                os.dup2(self.output.fileno(), 1)
                os.dup2(self.output.fileno(), 2)
                torch.set_num_threads(1)
                action()
                code = 0
            except BaseException:  # noqa: BLE001 - shown in the output
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self.pids[role] = pid

    def suspend(self, starting):
        """Start the job; when the waiter waits for the stopped worker, stop it as well, then resume both."""
        with starting:
            OTHERS.get(self.name, start_training)(self)
            if not self._stopped_in_wait():
                return
        time.sleep(self.timeout + LONGER)
        for pid in self.pids.values():
            os.kill(pid, signal.SIGCONT)

    def _stopped_in_wait(self):
        waiter = self.pids["waiter"]
        if not _wait_until_stopped(self.pids["other"]):
            return False
        since, place = time.monotonic(), self.place
        while time.monotonic() < since + STILL_SECONDS:
            if place != self.place:
                since, place = time.monotonic(), self.place
            time.sleep(0.01)
        os.kill(waiter, signal.SIGSTOP)
        self.was_suspended = _wait_until_stopped(waiter)
        return self.was_suspended

    def outcome(self):
        """Return the exit codes by role, all output, and whether the job was suspended."""
        codes, end = {}, time.monotonic() + LIMIT
        for role, pid in self.pids.items():
            while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            codes[role] = os.waitstatus_to_exitcode(ended[1])
        self.output.seek(0)
        output = self.output.read().decode(errors="replace")
        return {"suspended": self.was_suspended, "codes": codes, "output": output}


def _wait_until_stopped(pid):
    """Wait until a process is stopped; return False if it ended first, or after `LIMIT` seconds."""
    end = time.monotonic() + LIMIT
    while (state := look_at(pid).state) not in "TZ":
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return state == "T"


def stop_oneself():
    """Stop this process at once; with `os.kill` the calling thread may continue for a moment."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def train(job, rank, port):
    """Train as one of two workers; worker 1 stops itself in step `AT`."""
    os.environ.update(
        WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_USE_AGENT_STORE="True", TORCH_CPP_LOG_LEVEL="ERROR",
    )  # fmt: skip
    model, schedule = network(), Schedule(job.name, PAIR, SCHEDULES[job.name]())
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, schedule, timeout=job.timeout)
    with optimizer.join():
        for step in range(job.steps):
            if rank == 1 and step == AT:
                stop_oneself()
            time.sleep(0.005)
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if rank == 0:
                job.moved()
    optimizer.finish()


def start_training(job):
    job.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for rank, role in enumerate(("waiter", "other")):
        job.fork(role, lambda rank=rank: train(job, rank, job.store.port))


def connect(port):
    return TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)


def start_room(job):
    """Let the waiter wait for room in the mailbox of a worker that takes no messages."""
    job.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    bound = Bound(4, 4_000)

    def waiter():
        store = connect(job.store.port)
        box = Mailbox(store, 0, "m", lambda _: None, max_bytes=1_000, timeout=job.timeout, bound=bound)
        box.start()
        for number in range(12):
            box.send(1, "array", (number,), [bytes(1_000)])
            job.moved()
        Notes(store, "test").wait_for("end")
        box.close()

    def other():
        arrived, all_came = [], threading.Event()

        def deliver(message):
            if not arrived:
                stop_oneself()
            arrived.append(message.numbers)
            if len(arrived) == 12:
                all_came.set()

        store = connect(job.store.port)
        box = Mailbox(store, 1, "m", deliver, max_bytes=1_000, timeout=job.timeout, bound=bound)
        box.start()
        assert all_came.wait(60)
        Notes(store, "test").write("end", "1")
        box.close()

    job.fork("waiter", waiter)
    job.fork("other", other)


def start_message(job):
    job.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def waiter():
        arrived = []
        box = Mailbox(connect(job.store.port), 0, "m", arrived.append, max_bytes=1_000, timeout=job.timeout)
        box.start()
        box.send(1, "hello")
        box.wait_until(lambda: bool(arrived), Signs(), (1,), None)
        box.close()

    def other():
        answered = threading.Event()

        def deliver(message):
            stop_oneself()
            box.send(message.source, "answer")
            answered.set()

        box = Mailbox(connect(job.store.port), 1, "m", deliver, max_bytes=1_000, timeout=job.timeout)
        box.start()
        assert answered.wait(60)
        box.close()

    job.fork("waiter", waiter)
    job.fork("other", other)


def start_store(job):
    """Let the waiter send requests to a store whose server is stopped."""
    reading, writing = os.pipe()
    requested, asks = os.pipe()  # its end is the waiter's

    def other():
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        os.write(writing, f"{store.port}\n".encode())
        notes = Notes(store, "test", own_server=True)
        while notes.read("ready") is None:
            time.sleep(0.01)
        stop_oneself()
        os.close(asks)
        os.read(requested, 1)

    def waiter():
        store = connect(int(os.read(reading, 16)))
        fresh_line(store, job.timeout)
        notes = Notes(store, "test")
        notes.write("ready", "1")
        end = time.monotonic() + 2 * STILL_SECONDS + job.timeout
        while time.monotonic() < end:
            notes.has("ready")
            job.moved()
            time.sleep(0.05)

    job.fork("other", other)
    job.fork("waiter", waiter)
    os.close(asks)


def start_note(job):
    job.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def waiter():
        store = connect(job.store.port)
        fresh_line(store, job.timeout)
        Notes(store, "test").wait_for("late")

    def other():
        notes = Notes(connect(job.store.port), "test")
        stop_oneself()
        notes.write("late", "1")
        notes.has("late")

    job.fork("waiter", waiter)
    job.fork("other", other)


def start_generator(job):
    reading, writing = os.pipe()
    key = new_key()

    def other():
        setting = GeneratorSetting(nodes=(0, 0), group_size=2, division=st.GroupSplit.GLOBAL, slow_threshold=None)
        service = GeneratorService(setting, key, lease=None)
        os.write(writing, f"{service.address}\n".encode())
        threading.Timer(1.0, stop_oneself).start()
        service.run(120)
        service.close()

    def waiter():
        address = os.read(reading, 200).decode().strip()
        clients = [GeneratorClient(address, key_in(key, "test"), rank, timeout=job.timeout) for rank in range(2)]
        end = time.monotonic() + 2 * STILL_SECONDS + job.timeout
        while time.monotonic() < end:
            for client in clients:
                client.begin()
            for client in clients:
                client.group()
            job.moved()
            time.sleep(0.02)
        for client in clients:
            client.close()

    job.fork("other", other)
    job.fork("waiter", waiter)


OTHERS = {
    "room in a mailbox": start_room,
    "message": start_message,
    "store": start_store,
    "note": start_note,
    "generator": start_generator,
}


def rehearse():
    """Train once without a stop, so that later imports of workers do not come from a cold disk."""
    job = Job("all-reduce", timeout=LIMIT)
    job.steps = AT
    start_training(job)
    return job.outcome()


def main():
    timeout, *names = sys.argv[1:]
    import_once()
    rehearsal = rehearse()
    assert set(rehearsal["codes"].values()) == {0}, rehearsal["output"]
    starting, pipes = multiprocessing.get_context("fork").Semaphore(STARTING), {}
    for name in names:  # each job under a process of its own that has no other threads, since it forks
        reading, writing = os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            die_with_parent(parent)
            job = Job(name, float(timeout))
            job.suspend(starting)
            with os.fdopen(writing, "w") as pipe:
                json.dump(job.outcome(), pipe)
            os._exit(0)
        os.close(writing)
        pipes[name] = os.fdopen(reading)
    print(json.dumps({name: json.load(pipe) for name, pipe in pipes.items()}))


if __name__ == "__main__":
    main()
