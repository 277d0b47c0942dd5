"""The scenarios of the fault tests: real workers of which one fails, and the driver that forks them.

`python -m helpers.fault_scenarios` reads requests from standard input and answers each with one line of JSON. torch is
imported once; every scenario forks new processes. A scenario is run either by the launcher, or by `without_launcher`,
where the store has its own process and no launcher reports a death, as on several machines.
"""

# ruff: noqa: T201 - its output is what the tests read
import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from fractions import Fraction
from pathlib import Path

import torch

from benchmarks.faults.processes import look_at, runs
from helpers.scenarios import (
    everyone,
    launch_scenario,
    main,
    network,
    now,
    rank,
    report,
    reporting,
    stop_until_alone,
    train,
    wrapped,
)
from helpers.two_nodes import Network, enter
from helpers.waiting import until
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.runtime.launcher.processes import import_once
from partreduce.runtime.transport import gloo
from partreduce.runtime.transport.torch_api import TCPStore
from partreduce.runtime.worker import config_handshake

LIMIT = 90.0
"""Seconds after which workers without a launcher count as hanging."""
DYING = mmap.mmap(-1, 4)
"""The process id of the worker that will die while it connects, in memory shared by all workers."""


def pause_or_kill(number):
    """Report the time of the fault, then send the signal to this process."""
    report(fault=number, at=now())
    if number == signal.SIGSTOP:
        stop_until_alone()
    else:
        os.kill(os.getpid(), number)


def is_stopped(pid):
    return look_at(pid).state == "T"


def chain():
    """Return a schedule of workers in a row, in which a worker that stops at the end delays one pair after another."""
    phases = tuple(st.Phase.from_groups(5, groups) for groups in ([[0, 1], [2, 3]], [[1, 2], [3, 4]]))
    return Schedule("row", Cluster.regular(1, 5), st.StaticGroups(phases=st.GroupPhases(phases)))


RING = st.Round.from_edges(4, [(i, (i + 1) % 4, Fraction(1, 2)) for i in range(4)])
KINDS = {
    "allreduce": st.AllReduce(),
    "pipeline": st.AllReduce(sync=st.Pipeline()),
    "quorum": st.AllReduce(sync=st.PartialAllReduce(quorum=st.QuorumStart.SOLO)),
    "neighbor": st.NeighborAveraging(rounds=(RING,)),
    "pairwise": st.Pairwise(active=(0, 1)),
    "server": st.Server(hosts=(0, 1)),
    "asynchronous server": st.Server(hosts=(0, 1), synchronous=False),
}


def of_kind(kind):
    return Schedule(kind, Cluster.regular(1, 4), KINDS[kind])


def train_until_signal(schedule, victim, number, *, timeout, at=10, pause=0.005):
    """Train; in step `at` the worker `victim` gets a signal. Every worker reports how it ended."""
    model = network()
    optimizer = wrapped(model, schedule, timeout=timeout)

    def hook(step):
        time.sleep(pause)
        if step == at:
            print("STEPS", flush=True)
            if rank() == victim:
                pause_or_kill(number)

    def loop():
        train(optimizer, model, 100_000, hook)
        optimizer.finish()

    reporting(loop)


def gap_ring(**options):
    """Return a schedule with an iteration gap on a ring of five, so that two workers are no neighbors of worker 2."""
    edges = [((to + hop) % 5, to, Fraction(1, 4)) for to in range(5) for hop in (1, -1)]
    strategy = st.NeighborAveraging(rounds=(st.Round.from_edges(5, edges),), sync=st.IterationGap(**options))
    return Schedule("gap", Cluster.regular(1, 5), strategy)


HEARD = mmap.mmap(-1, 16)
"""How many updates, tokens and acknowledgements each worker has received, in memory shared by all workers."""


def hear(optimizer, of):
    """Count in `HEARD` what this worker receives from the neighbor `of`."""
    log = optimizer.runner.log
    add, me = log.add, rank()
    HEARD[me] = 0

    def count_event(kind, *numbers, source=-1, by=0, **details):
        add(kind, *numbers, source=source, by=by, **details)
        if source == of:
            HEARD[me] += by or 1

    log.add = count_event


def until_heard(counts):
    until(lambda: all(HEARD[worker] >= count for worker, count in counts.items()), lambda: (list(HEARD), counts))


def killed_in_step_2(seconds, heard, *, together=False, **options):
    """Kill worker 2 in its step 2, before it sends in it and after both neighbors received `heard` messages from it.

    A step takes `seconds`; with `together` workers enter each step at the same time.
    """
    model = network()
    optimizer = wrapped(model, gap_ring(**options))
    store = optimizer.run.reducer.world.store
    hear(optimizer, of=2)

    def loop():
        while optimizer.steps < 100:
            step = f"step {optimizer.steps}"
            store.add(step, 1)
            while together and store.add(step, 0) < 4 + (optimizer.steps <= 2):
                time.sleep(0.02)
            if optimizer.steps == 2 and rank() == 2:
                until_heard({1: heard, 3: heard})
                pause_or_kill(signal.SIGKILL)
            time.sleep(seconds)
            optimizer.step()
        optimizer.finish()

    reporting(loop)


def killed_at_start(stage):
    """Kill worker 2 before its first step: during imports, the handshake, or connecting."""
    if rank() == 2 and stage == "imports":
        pause_or_kill(signal.SIGKILL)
    if rank() == 2 and stage == "handshake":
        note = config_handshake.publish_stage
        config_handshake.publish_stage = lambda *arguments: (note(*arguments), pause_or_kill(signal.SIGKILL))
    if rank() == 3 and stage == "handshake":
        time.sleep(2.0)  # so that the handshake is under way
    if stage == "connecting":
        die_while_connecting(2)
    only_wrapped(60)


def die_while_connecting(victim):
    """Let a worker publish its address and die; the others of its first group connect after that."""
    make, begun = gloo.ProcessGroupGloo, []

    class Late:
        _Options, create_device = make._Options, make.create_device
        create_default_device = make.create_default_device

        def __new__(cls, *arguments):
            if not begun:
                begun.append(1)
                if rank() == victim:
                    DYING[:4] = os.getpid().to_bytes(4)
                    threading.Timer(0.5, lambda: pause_or_kill(signal.SIGKILL)).start()
                while rank() != victim and (DYING[:4] == bytes(4) or runs(int.from_bytes(DYING[:4]))):
                    time.sleep(0.01)
            return make(*arguments)

    gloo.ProcessGroupGloo = Late


def connecting(timeout):
    die_while_connecting(3)
    only_wrapped(timeout)


def only_wrapped(timeout):
    model = network()
    reporting(lambda: wrapped(model, everyone(), timeout=timeout))


def fence_worker():
    """Stop worker 3 until the generator has evicted it, and let it continue while the others still train.

    The others wait in step 30 until worker 3 has ended.
    """
    model = network()
    schedule = Schedule("g", Cluster.regular(1, 4), st.DynamicGroups(group_size=2, slow_threshold=None))
    optimizer = wrapped(model, schedule, timeout=300)
    me, steps, store = os.getpid(), [], optimizer.run.reducer.world.store

    def hook(step):
        steps.append(step)
        time.sleep(0.02)
        if rank() == 3 and step == 10:
            if os.fork() == 0:
                while not is_stopped(me):  # a SIGCONT before it is stopped would be lost
                    time.sleep(0.01)
                while not Path(os.environ["EVICTED"]).exists():
                    time.sleep(0.05)
                os.kill(me, signal.SIGCONT)
                os._exit(0)
            report(fault=signal.SIGSTOP, at=now())
            os.kill(me, signal.SIGSTOP)
        while rank() != 3 and step == 30 and not store.check(["awake"]):
            time.sleep(0.05)

    def loop():
        train(optimizer, model, 60, hook)
        optimizer.finish()

    try:
        reporting(loop)
    finally:
        if rank() == 3:
            store.set("awake", "")
        report(steps=len(steps))


BY_LAUNCHER = {
    "fenced": (4, fence_worker),
    "gap, notify": (5, lambda: killed_in_step_2(0.05, 4, notify_ack=True)),
    "gap, staleness": (5, lambda: killed_in_step_2(0.05, 3, staleness=2, update_order=st.UpdateOrder.DPSGD)),
    "gap, backup": (5, lambda: killed_in_step_2(1.5, 4, together=True, backup=1, max_ig=3)),
    **{f"stopped, {kind}": (4, lambda kind=kind: train_until_signal(of_kind(kind), 1, signal.SIGSTOP, timeout=6))
        for kind in ("pipeline", "quorum")},
    **{f"killed in {s}": (4, lambda s=s: killed_at_start(s)) for s in ("imports", "handshake", "connecting")},
    "row": (5, lambda: train_until_signal(chain(), int(os.environ["VICTIM"]), signal.SIGSTOP, timeout=8,
        at=int(os.environ["AT"]))),
    **{f"killed, {kind}": (4, lambda kind=kind: train_until_signal(of_kind(kind), 1, signal.SIGKILL, timeout=60))
        for kind in KINDS},
}  # fmt: skip
WITHOUT_LAUNCHER = {
    "training": (3, lambda: train_until_signal(everyone(), -1, 0, timeout=8, pause=0.05)),
    "connecting": (4, lambda: connecting(8)),
    "wrapped": (2, lambda: only_wrapped(2)),
}


def without_launcher(request):
    """Run workers whose store is served by another process; the fault hits that process, its port or its link."""
    import_once()  # as the launcher does before it forks
    num_workers, function = WITHOUT_LAUNCHER[request["name"]]
    fault = request.get("fault")
    read_end, write_end = os.pipe()
    ports_read, ports_write = os.pipe()
    squatter = socket.socket()
    squatter.bind(("127.0.0.1", 0))
    net = Network() if fault == "cut" else None
    place = net.address if net else "127.0.0.1"
    host = _fork(lambda: _serve(ports_write, place, net), write_end)
    port = os.read(ports_read, 16).decode()
    if fault == "squatted":
        squatter.listen(16)
        port = str(squatter.getsockname()[1])
    variables = {
        "WORLD_SIZE": str(num_workers),
        "MASTER_ADDR": place,
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    start = now()
    workers = {_fork(lambda r=r: _work(function, variables, r, net), write_end): r for r in range(num_workers)}
    os.close(write_end)
    output, codes, fired = "", {}, None
    os.set_blocking(read_end, False)
    deadline = time.monotonic() + LIMIT
    while len(codes) < num_workers and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            output += os.read(read_end, 65536).decode()
        if fired is None and net and output.count("STEPS") == num_workers:
            fired = now()
            net.cut()
        if fired is None and fault in ("SIGSTOP", "SIGKILL") and output.count("STEPS") == num_workers:
            fired = now()
            os.kill(host, getattr(signal, fault))
            fires_by = time.monotonic() + 60  # a signalled process, too, needs a processor to stop or end
            while look_at(host).state not in "TZ":
                assert time.monotonic() < fires_by, "the fault fired"
                time.sleep(0.01)
        for pid in list(workers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                codes[workers.pop(pid)] = now()
        time.sleep(0.01)
    for pid in [*workers, host]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with contextlib.suppress(BlockingIOError):
        output += os.read(read_end, 65536).decode()
    for descriptor in (read_end, ports_read, ports_write):
        os.close(descriptor)
    squatter.close()
    if net:
        net.close()
    return {"hang": sorted(workers.values()), "output": output, "fired": fired if fired is not None else start}


def _fork(action, descriptor):
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - as long as the process
            action()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # noqa: BLE001 - shown in the output
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def _serve(ports_write, place, net):
    if net:
        enter(net.spaces[0])
    store = TCPStore(place, 0, None, True, wait_for_workers=False)
    os.write(ports_write, str(store.port).encode())
    time.sleep(600)


def _work(function, variables, number, net):
    if net:
        enter(net.spaces[1])
    os.environ.update(variables, RANK=str(number))
    torch.set_num_threads(1)
    function()


def answer(request):
    DYING[:4] = bytes(4)
    return launch_scenario(BY_LAUNCHER, request) if request["name"] in BY_LAUNCHER else without_launcher(request)


if __name__ == "__main__":
    main(answer)
