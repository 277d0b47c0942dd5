"""The faults: what each does to a running cell. Each says that it fired only when it has seen its effect.

An injector is a generator that yields while it waits, so that several cells run side by side in one thread.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.kinds import KINDS, NODES, WORKERS
from benchmarks.faults.processes import is_pending, runs
from benchmarks.faults.running import Running

Injector = Callable[[Running], Iterator[None]]

LONG = 100_000
"""Steps of a run that only the fault ends."""
SHORT = 170
"""Steps of a run that is to continue to its end."""
LONGER = 600
"""Steps of a run which a worker is to join."""
STORE = r"store|launcher|agent"
PAGE = 65536


@dataclass(frozen=True)
class Fault:
    """A fault: with which launchers and kinds it goes, and what the run looks like that it meets."""

    inject: Injector
    launchers: tuple[str, ...] = ("run",)
    kinds: tuple[str, ...] = tuple(KINDS)
    steps: int = LONG
    children: int = 0
    """How many processes each worker forks."""
    saves: bool = False
    """Whether workers save when they are asked to end."""
    restarts: int = 0
    """How often a failed worker, or all, are restarted."""
    weight: int = 1
    """How often a campaign draws it, against the others."""


SEEN_SECONDS = 15.0
"""In which a signal shows: a killed process, too, needs a processor to end, and may be the last to get one."""


def send(running: Running, pid: int, number: signal.Signals) -> Iterator[None]:
    """Send a signal; it fired when the process is seen gone, or stopped, or has the signal at all (SIGTERM)."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    if number == signal.SIGTERM:
        running.outcome.fired = True
        return
    deadline = time.monotonic() + SEEN_SECONDS
    while time.monotonic() < deadline:
        if running.is_paused(pid) if number == signal.SIGSTOP else not runs(pid):
            running.outcome.fired = True
            return
        yield


def _training(running: Running, seconds: float = 0.9) -> Iterator[None]:
    """Wait until all train, and then for up to so many seconds."""
    yield from running.until(running.all_train)
    yield from running.sleep(running.chance.uniform(0, seconds))


ANY, SAME, OTHER, NODE, BACK = "any", "same", "other", "node", "back"
"""Whom a kill is of: any worker, those killed before, another one, or the launcher of node 1 with all of its workers.
`BACK`: none, and what follows waits until those killed before were restarted."""
ON_NODE_1 = tuple(range(WORKERS // NODES, WORKERS))


def kill(*steps: tuple[str, float], training: bool = True, finishes: bool = False) -> Injector:
    """SIGKILL of one worker after another, each within so many seconds at most; the run then `finishes`, or may.

    The first comes while all train, or where none is `training` yet, between a worker's start and its first step.
    """

    def inject(running: Running) -> Iterator[None]:
        running.must_finish = finishes
        if training:
            yield from running.until(running.all_train)
        for who, seconds in steps:
            if who == BACK:
                yield from running.until(
                    lambda: all(len(running.pids_of(rank)) > 1 for rank in running.victims), SEEN_SECONDS
                )
            failed, chance = sorted(running.victims), running.chance
            victims = {
                ANY: (chance.randrange(WORKERS),),
                SAME: tuple(failed),
                OTHER: (chance.choice([rank for rank in range(WORKERS) if rank not in failed]),),
                NODE: ON_NODE_1,
                BACK: (),
            }[who]
            if not training:
                yield from running.until(lambda: running.pid_of(victims[0]) is not None)  # noqa: B023 - waits here
            yield from running.sleep(chance.uniform(0, seconds))
            if who == NODE:
                yield from _kill(running, victims, running.launcher_of(1), "node 1's launcher")
            else:
                for victim in victims:
                    yield from _kill(running, (victim,), running.pid_of(victim), f"worker {victim}")

    return inject


def kill_parent(running: Running) -> Iterator[None]:
    """SIGKILL of one worker that has forked children, which live on: by hand of worker 0, which hosts the store.

    It fired when the worker is gone, and where nobody ends them, its children are not.
    """
    by_hand = running.cell.launcher == "by hand"
    yield from _training(running)
    victim = 0 if by_hand else running.chance.randrange(WORKERS)
    if running.is_over or len(running.children_of(victim)) < running.task.children:
        return
    yield from _kill(
        running, (victim,), running.pid_of(victim), f"worker {victim} with {running.task.children} children"
    )
    running.outcome.fired &= not by_hand or len(running.children_of(victim)) == running.task.children


def _kill(running: Running, victims: tuple[int, ...], pid: int | None, name: str) -> Iterator[None]:
    if pid is None or running.is_over or not runs(pid):
        return
    running.fires(f"SIGKILL of {name}", culprit=_workers(victims), victims=victims)
    yield from send(running, pid, signal.SIGKILL)


def _workers(victims: tuple[int, ...]) -> str:
    return "|".join(rf"\b(worker|rank|local_rank)\s*:?\s*{victim}\b" for victim in victims)


def pause(times: float, *, store_host: bool = False) -> Injector:
    """SIGSTOP of one worker for a part of, or several times, the timeout; then SIGCONT."""

    def inject(running: Running) -> Iterator[None]:
        yield from _training(running, 0.5)
        victim = 0 if store_host else running.chance.randrange(WORKERS)
        pid = running.pid_of(victim)
        if pid is None or running.is_over or not runs(pid):
            return
        running.must_finish = times < 1
        culprit = _workers((victim,)) + (f"|{STORE}" if store_host else "")
        running.fires(f"SIGSTOP of worker {victim} for {times:g} timeouts", culprit=culprit, victims=(victim,))
        yield from _stop_for(running, pid, times * running.cell.timeout)

    return inject


def _stop_for(running: Running, pid: int, seconds: float) -> Iterator[None]:
    yield from send(running, pid, signal.SIGSTOP)
    yield from running.until(lambda: not runs(pid), seconds)
    if runs(pid):
        os.kill(pid, signal.SIGCONT)
    running.took_back(seconds)


def signal_launcher(number: signal.Signals, *, starting: bool) -> Injector:
    """SIGTERM or SIGKILL of the launcher, which hosts the store; at start-up or while all train."""

    def inject(running: Running) -> Iterator[None]:
        nodes = 1
        if not starting:
            yield from running.until(running.all_train)
        elif running.cell.launcher == "nodes":
            nodes = NODES  # those that have not met would wait for one another
            yield from running.until(lambda: running.launcher_of(NODES - 1) is not None)
        yield from running.sleep(running.chance.uniform(0, 2.5 if starting else 0.9))
        if running.is_over:
            return
        # Whom SIGKILL's children ask is the kernel, so nobody is left who could be asked to name anything.
        running.fires(f"{number.name} of the launcher {'at start-up' if starting else 'while all train'}")
        for node in range(nodes):
            yield from send(running, running.launcher_of(node) or running.pid, number)

    return inject


def signal_launcher_twice(number: signal.Signals) -> Injector:
    """The same signal twice within milliseconds, as GNU `timeout` sends it: one request, and time to save."""

    def inject(running: Running) -> Iterator[None]:
        yield from _training(running)
        if running.is_over:
            return
        running.must_save = True
        running.fires(f"{number.name} of the launcher, twice")
        pid = running.launcher_of(0) or running.pid
        yield from send(running, pid, number)
        while is_pending(pid, number):  # two that wait are one to the kernel
            time.sleep(0.0002)
        yield from send(running, pid, number)

    return inject


def pause_launcher(running: Running) -> Iterator[None]:
    """SIGSTOP of the launcher, and with it of the store, for three timeouts."""
    yield from _training(running, 0.5)
    if running.is_over:
        return
    running.fires("SIGSTOP of the launcher, which hosts the store", culprit=STORE)
    yield from _stop_for(running, running.launcher_of(0) or running.pid, 3 * running.cell.timeout)


def kill_generator(running: Running) -> Iterator[None]:
    """SIGKILL of the group generator, which its keeper starts again."""
    yield from _training(running, 0.5)
    pid = running.named("partreduce generator")
    if pid is None:
        return
    running.must_finish = True
    running.fires("SIGKILL of the generator", culprit="generator")
    yield from send(running, pid, signal.SIGKILL)


def pause_generator(running: Running) -> Iterator[None]:
    """SIGSTOP of the group generator for three timeouts."""
    yield from _training(running, 0.5)
    pid = running.named("partreduce generator")
    if pid is None:
        return
    running.fires("SIGSTOP of the generator", culprit="generator")
    yield from _stop_for(running, pid, 3 * running.cell.timeout)


def exception(running: Running) -> Iterator[None]:
    """An exception in the user's own code, which the task already holds."""
    victim = running.task.raising
    assert victim is not None

    def raises() -> bool:
        return any(record.what == "raises" for record in running.records(victim))

    yield from running.until(raises)
    if raises():
        running.fires(f"an exception on worker {victim}", culprit=_workers((victim,)), victims=(victim,))
        running.fault_time = next(r.time for r in running.records(victim) if r.what == "raises")
        running.outcome.fired = True


def squatted_port(running: Running) -> Iterator[None]:
    """A stranger listens on the run's port, takes connections, and never answers; it was there before the run."""
    running.fires("a stranger listens on the store's port", culprit="store|port")
    running.outcome.fired = True
    yield


def squat() -> socket.socket:
    """The stranger's socket: the kernel takes its connections and nobody ever reads."""
    stranger = socket.socket()
    stranger.bind(("127.0.0.1", 0))
    stranger.listen(64)
    return stranger


def full_disk(running: Running) -> Iterator[None]:
    """The disk of traces, or of checkpoints, fills up while all train."""
    yield from _training(running, 0.6)
    if running.is_over:
        return
    running.must_finish = True
    running.fires("the disk is full")
    running.outcome.fired = fill(Path(running.task.trace or running.task.checkpoints or ""))


def fill(folder: Path) -> bool:
    """Write until nothing more fits; whether that was reached."""
    for size in (PAGE, 1):
        with (folder / "filling").open("ab", buffering=0) as file:
            try:
                for _ in range(1024):
                    file.write(b"x" * size)
            except OSError:
                continue
    try:
        (folder / "probe").write_bytes(b"x" * 4096)
    except OSError:
        return True
    return False


def tiny_disk(folder: Path) -> Callable[[], None]:
    """Mount a file system of 3 MB; returns what takes it away again."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True, timeout=10)

    def unmount() -> None:
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=10)

    return unmount


def cut_link(times: float) -> Injector:
    """The link of node 1 goes down for a part of, or several times, the timeout; then up again.

    TCP sends again at doubling intervals, so a link that was cut for a time is quiet for up to twice as long.
    """

    def inject(running: Running) -> Iterator[None]:
        network = running.network
        assert network is not None
        yield from _training(running, 0.5)
        if running.is_over:
            return
        running.must_finish = times < 1
        # Those that are cut off cannot know who is at fault: they name the store, or those they wait for.
        culprit = _workers(ON_NODE_1)
        running.fires(f"link of node 1 cut for {times:g} timeouts", culprit=culprit, victims=ON_NODE_1)
        network.set_link(1, up=False)
        running.outcome.fired = True
        yield from running.sleep(times * running.cell.timeout)
        network.set_link(1, up=True)
        running.took_back(times * running.cell.timeout)

    return inject


LASTING = tuple(name for name, kind in KINDS.items() if kind.max_failures)
"""What continues after failures."""
NEEDS_GENERATOR = ("dynamic_groups",)
ENDING = tuple(name for name, kind in KINDS.items() if not kind.max_failures and name not in NEEDS_GENERATOR)
"""What a failure ends, and all restart."""
IN_STEP = tuple(name for name, kind in KINDS.items() if not kind.takes_several)
"""Where workers may save when their step is a multiple of a number."""
OURS = ("run", "nodes")
AGENTS = (*OURS, "torchrun")
EVERYWHERE = (*AGENTS, "by hand")
FIRST, THEN_BACK = (ANY, 0.9), (BACK, 0.0)
FAULTS = {
    "kill worker": Fault(kill(FIRST), EVERYWHERE, weight=3),
    "kill while connecting": Fault(kill((ANY, 0.35), training=False), EVERYWHERE, weight=2),
    "kill node": Fault(kill((NODE, 0.9)), ("nodes",), weight=4),
    "kill two": Fault(kill(FIRST, (OTHER, 0.4)), OURS, LASTING, SHORT, weight=4),
    "kill and join": Fault(kill(FIRST, THEN_BACK), OURS, LASTING, LONGER, restarts=1, weight=4),
    "kill joiner": Fault(kill(FIRST, THEN_BACK, (SAME, 0.8)), OURS, LASTING, LONGER, restarts=2, weight=4),
    "kill while one joins": Fault(kill(FIRST, THEN_BACK, (OTHER, 0.8)), OURS, LASTING, LONGER, restarts=2, weight=4),
    "kill three, restart": Fault(
        kill(FIRST, (OTHER, 0.05), (OTHER, 0.05), THEN_BACK, finishes=True), OURS, LASTING, SHORT, restarts=6, weight=2
    ),
    "kill, restart": Fault(kill(FIRST, THEN_BACK, finishes=True), OURS, ENDING, SHORT, restarts=1),
    "kill twice, restart": Fault(kill(FIRST, THEN_BACK, (ANY, 2.0), finishes=True), OURS, ENDING, SHORT, restarts=2),
    "kill parent of children": Fault(kill_parent, EVERYWHERE, children=2, weight=2),
    "pause for half": Fault(pause(0.5), AGENTS, steps=SHORT),
    "pause for three": Fault(pause(3), EVERYWHERE),
    "pause store host": Fault(pause(3, store_host=True), ("by hand",)),
    "exception": Fault(exception, AGENTS, weight=2),
    "SIGTERM launcher at start": Fault(signal_launcher(signal.SIGTERM, starting=True), AGENTS),
    "SIGKILL launcher at start": Fault(signal_launcher(signal.SIGKILL, starting=True), AGENTS),
    "SIGTERM launcher": Fault(signal_launcher(signal.SIGTERM, starting=False), AGENTS),
    "SIGTERM launcher twice": Fault(signal_launcher_twice(signal.SIGTERM), OURS, saves=True, weight=2),
    "SIGKILL launcher": Fault(signal_launcher(signal.SIGKILL, starting=False), AGENTS),
    "pause launcher": Fault(pause_launcher, AGENTS),
    "kill generator": Fault(kill_generator, OURS, NEEDS_GENERATOR, SHORT, weight=3),
    "pause generator": Fault(pause_generator, OURS, NEEDS_GENERATOR, weight=3),
    "squatted port": Fault(squatted_port, ("by hand",), kinds=("static", "neighbor", "server asynchronous")),
    "full disk for traces": Fault(full_disk, steps=SHORT),
    "full disk for checkpoints": Fault(full_disk, kinds=IN_STEP, steps=SHORT),
    "cut link": Fault(cut_link(3), ("nodes",)),
    "cut link, healed": Fault(cut_link(0.25), ("nodes",), steps=SHORT),
}


def all_restart(kind: str, restarts: int) -> bool:
    """Whether all workers of a run are restarted after a failure."""
    return restarts > 0 and kind in ENDING
