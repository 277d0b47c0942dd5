"""The effect of each fault of `faults.toml` on a running cell; a fault has fired only when its effect was seen.

An injector is a generator that yields while it waits, so that several cells run in one thread.
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
from typing import Any

from benchmarks import kit
from benchmarks.faults.kinds import KINDS, NODES, WORKERS
from benchmarks.faults.processes import is_pending, runs
from benchmarks.faults.running import Running

STEPS = {"long": 100_000, "short": 170, "longer": 600}
STORE = r"store|launcher|agent"
PAGE = 65536
ON_NODE_1 = tuple(range(WORKERS // NODES, WORKERS))
SEEN_SECONDS = 15.0
"""Most seconds until a signal has its effect: a killed process needs a processor to end."""


@dataclass(frozen=True)
class Act:
    """A signal to `who` after a random time up to `within` seconds, sent `times` times.

    SIGSTOP lasts for `timeouts` timeouts of the run, then the process continues.
    """

    who: str
    within: float = 0.9
    signal: str = "KILL"
    timeouts: float = 0.0
    times: int = 1

    @property
    def number(self) -> signal.Signals:
        return signal.Signals[f"SIG{self.signal}"]


@dataclass(frozen=True)
class Fault:
    """A row of the table: signals (`acts`) or a function (`does`); `weight` is its relative frequency."""

    launchers: tuple[str, ...]
    kinds: tuple[str, ...]
    steps: int
    acts: tuple[Act, ...] = ()
    does: str = ""
    begins: str = "training"
    timeouts: float = 0.0
    children: int = 0
    saves: bool = False
    restarts: int = 0
    finishes: bool = False
    weight: int = 1

    def inject(self, running: Running) -> Iterator[None]:
        running.must_finish = self.finishes
        if self.does:
            yield from DONE[self.does](running, self)
            return
        if self.begins == "training":
            yield from running.until(running.all_train)
        elif self.begins == "starting" and running.cell.launcher == "nodes":  # who has not met waits for the other
            yield from running.until(lambda: running.launcher_of(NODES - 1) is not None)
        for act in self.acts:
            yield from _carry_out(running, act, self.begins)


def _carry_out(running: Running, act: Act, begins: str) -> Iterator[None]:
    failed, chance = sorted(running.victims), running.chance
    if act.who == "back":
        yield from running.until(lambda: all(len(running.pids_of(rank)) > 1 for rank in failed), SEEN_SECONDS)
        return
    is_host = act.who == "store host" or (act.who == "parent" and running.cell.launcher == "by hand")
    anybody = chance.randrange(WORKERS)
    victims = {
        "any": (anybody,),
        "parent": (0 if is_host else anybody,),
        "store host": (0,),
        "same": tuple(failed),
        "other": (chance.choice([rank for rank in range(WORKERS) if rank not in failed]),),
        "node": ON_NODE_1,
    }.get(act.who, ())
    if begins == "connecting":
        yield from running.until(lambda: running.pid_of(victims[0]) is not None)
    yield from running.sleep(chance.uniform(0, act.within))
    if act.who == "parent" and len(running.children_of(victims[0])) < running.task.children:
        return
    for name, pid, whose, culprit in _targets(running, act, victims, begins):
        if pid is None or running.is_over or not runs(pid):
            return
        running.fires(f"{act.number.name} of {name}", culprit=culprit, victims=whose)
        yield from send(running, pid, act.number)
        for _ in range(1, act.times):
            while is_pending(pid, act.number):  # two that wait are one to the kernel
                time.sleep(0.0002)
            yield from send(running, pid, act.number)
        if act.signal == "STOP":
            seconds = act.timeouts * running.cell.timeout
            yield from running.until(lambda pid=pid: not runs(pid), seconds)  # type: ignore[misc]
            if runs(pid):
                os.kill(pid, signal.SIGCONT)
            running.took_back(seconds)
    if act.who == "parent" and is_host:  # its children are not ended there
        running.outcome.fired &= len(running.children_of(victims[0])) == running.task.children


def _targets(
    running: Running, act: Act, victims: tuple[int, ...], begins: str
) -> Iterator[tuple[str, int | None, tuple[int, ...], str]]:
    """Yield (name, process id, workers that fail with it, regular expression that survivors' errors must match)."""
    if act.who == "launcher":
        # If the launcher itself ends, no process is left to name a culprit.
        nodes = NODES if begins == "starting" and running.cell.launcher == "nodes" else 1
        for node in range(nodes):
            yield "the launcher", running.launcher_of(node) or running.pid, (), STORE if act.timeouts else ""
    elif act.who == "generator":
        yield "the generator", running.named("partreduce generator"), (), "generator"
    elif act.who == "node":
        yield "node 1's launcher", running.launcher_of(1), victims, _workers(victims)
    else:
        for victim in victims:
            culprit = _workers((victim,)) + (f"|{STORE}" if act.who == "store host" else "")
            yield f"worker {victim}", running.pid_of(victim), (victim,), culprit


def _workers(victims: tuple[int, ...]) -> str:
    return "|".join(rf"\b(worker|rank|local_rank)\s*:?\s*{victim}\b" for victim in victims)


def send(running: Running, pid: int, number: signal.Signals) -> Iterator[None]:
    """Send a signal; it has fired when the process is seen gone or stopped, or at once for SIGTERM."""
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


def exception(running: Running, _: Fault) -> Iterator[None]:
    """Raise an exception in the user's code; the task already says so."""
    victim = running.task.raising
    assert victim is not None

    def raises() -> bool:
        return any(record.what == "raises" for record in running.records(victim))

    yield from running.until(raises)
    if raises():
        running.fires(f"an exception on worker {victim}", culprit=_workers((victim,)), victims=(victim,))
        running.fault_time = next(r.time for r in running.records(victim) if r.what == "raises")
        running.outcome.fired = True


def squatted_port(running: Running, _: Fault) -> Iterator[None]:
    """Let another process listen on the run's port from before its start and never answer."""
    running.fires("a stranger listens on the store's port", culprit="store|port")
    running.outcome.fired = True
    yield


def squat() -> socket.socket:
    """Return a socket on which the kernel accepts connections that no process reads."""
    stranger = socket.socket()
    stranger.bind(("127.0.0.1", 0))
    stranger.listen(64)
    return stranger


def full_disk(running: Running, _: Fault) -> Iterator[None]:
    """Fill the disk of traces or checkpoints while all workers train."""
    yield from running.until(running.all_train)
    yield from running.sleep(running.chance.uniform(0, 0.6))
    if not running.is_over:
        running.fires("the disk is full")
        running.outcome.fired = fill(Path(running.task.trace or running.task.checkpoints or ""))


def fill(folder: Path) -> bool:
    """Write until the disk is full; return whether that was reached."""
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


def tiny_disk(folder: Path) -> Callable[[], object]:
    """Mount a file system of 3 MB; return a function that unmounts it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True, timeout=10)
    return lambda: subprocess.run(["umount", "-l", str(folder)], check=False, timeout=10)


def cut_link(running: Running, fault: Fault) -> Iterator[None]:
    """Cut the link of node 1 for a part of the timeout, or several timeouts, then restore it.

    TCP retransmits at doubling intervals, so after a cut a link stays quiet for up to twice as long.
    """
    network, seconds = running.network, fault.timeouts * running.cell.timeout
    assert network is not None
    yield from running.until(running.all_train)
    yield from running.sleep(running.chance.uniform(0, 0.5))
    if running.is_over:
        return
    # Those that are cut off cannot know who is at fault: they name the store, or those they wait for.
    running.fires(f"link of node 1 cut for {fault.timeouts:g} timeouts", culprit=_workers(ON_NODE_1), victims=ON_NODE_1)
    network.set_link(1, up=False)
    running.outcome.fired = True
    yield from running.sleep(seconds)
    network.set_link(1, up=True)
    running.took_back(seconds)


DONE = {"exception": exception, "squatted port": squatted_port, "full disk": full_disk, "cut link": cut_link}
KINDS_OF = {
    "all": tuple(KINDS),
    "lasting": tuple(name for name, kind in KINDS.items() if kind.max_failures),
    "generated": ("dynamic_groups",),
    "ending": tuple(name for name, kind in KINDS.items() if not kind.max_failures and name != "dynamic_groups"),
    "in step": tuple(name for name, kind in KINDS.items() if not kind.takes_several),
}
"""Groups of kinds by name: `lasting` ones continue after failures, `ending` ones end at a failure, and so on.

Workers of kinds `in step` may save when their step is a multiple of a number.
"""
TABLE = kit.read_toml(Path(__file__).with_name("faults.toml"))
OURS = tuple(TABLE["launchers"]["ours"])


def _fault(row: dict[str, Any]) -> Fault:
    kinds = row.pop("kinds", "all")
    return Fault(
        launchers=tuple(TABLE["launchers"][row.pop("on")]),
        kinds=KINDS_OF[kinds] if isinstance(kinds, str) else tuple(kinds),
        steps=STEPS[row.pop("steps", "long")],
        acts=tuple(Act(**act) for act in row.pop("acts", ())),
        **row,
    )


FAULTS = {name: _fault(dict(row)) for name, row in TABLE["faults"].items()}
