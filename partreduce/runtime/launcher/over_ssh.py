"""A run over several hosts: `ssh` starts an agent on each, and this launcher watches all workers as if they ran here.

What a failure means, who is told of it and when the rest is ended is decided in `supervision`, as on one machine. The
store and the group generator run here. Keys, the schedule and the variables go through ssh's standard input, so no
command line shows them. Names, ports and keys of hosts are ssh's affair: `~/.ssh/config` says them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partreduce.runtime.environment import MASTER_ADDR, RUN_ID, RUN_SECRET
from partreduce.runtime.launcher.agent import ASK_SECONDS, ASKS, RECORD
from partreduce.runtime.launcher.launch import GRACE_SECONDS, failure_environment, failure_rule, serve_store
from partreduce.runtime.launcher.outlet import LogMultiplexer
from partreduce.runtime.launcher.signals import format_end, held, let_through, raise_unheard
from partreduce.runtime.launcher.supervision import Line, complete_lines, supervise
from partreduce.runtime.launcher.workers import Worker
from partreduce.topo.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from partreduce.runtime.elastic.coordinator import Generator

START_SECONDS = 300.0
"""In which all hosts have connected and imported torch, which over a network file system takes minutes."""
END_SECONDS = 10.0
"""In which an agent has ended its workers once its connection is closed."""
SETTINGS = ("PARTREDUCE_", "GLOO_", "NCCL_", "TORCH_", "OMP_")
"""How variables begin that are set here and hold on all hosts."""
OPTIONS = {
    "BatchMode": "yes",  # nobody is there to answer, once for each host
    "ConnectTimeout": "30",
    "ServerAliveInterval": str(ASK_SECONDS),
    "ServerAliveCountMax": str(ASKS),
}


@dataclass(slots=True)
class RemoteWorker(Worker):
    """A worker of another host, of which the agent there tells."""

    host: Host
    told: int | None = None
    """Its `code`, if the agent has said it."""

    def reap(self) -> bool:
        self.code = self.told
        if self.told is None and self.host.is_gone:
            self.code = UnavailableError.exit_code
            self.lost = f"was lost with host {self.host.name} ({self.host.end()})"
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        self.host.order("signal", self.rank, int(number))

    def give_up(self) -> None:
        self.host.give_up()


class Host:
    """One host's agent, at the other end of ssh.

    Args:
        name: as ssh knows it.
        ranks: of its workers.
        command: that reaches it.
        outlet: for what ssh and the host's shell say by themselves.
    """

    def __init__(self, name: str, ranks: Sequence[int], command: Sequence[str], outlet: LogMultiplexer) -> None:
        self.name, self.outlet = name, outlet
        self.workers = {rank: RemoteWorker(rank, self) for rank in ranks}
        self.said: dict[str, list[Any]] = {}
        """What the agent said of itself, by its first word."""
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for this launcher, which passes it on.
        self._ssh = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0)
        assert self._ssh.stdin is not None
        assert self._ssh.stdout is not None
        assert self._ssh.stderr is not None
        self._orders, self._records = self._ssh.stdin, self._ssh.stdout.fileno()
        self.streams = {self._records: b"", self._ssh.stderr.fileno(): b""}
        self.is_gone = False

    def take(self, descriptor: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """The lines of its workers; what else comes with them is noted, or shown."""
        complete, is_open = complete_lines(self.streams, descriptor, last=last)
        self.is_gone |= descriptor == self._records and not (is_open or last)
        lines = []
        for line in complete:
            text = line.decode(errors="replace").rstrip("\r")
            if descriptor != self._records or not text.startswith(RECORD):
                self.outlet.write(f"[{self.name}] {text}\n", errors=True)
                continue
            kind, *values = json.loads(text.removeprefix(RECORD))
            if kind == "line":
                rank, errors, written = values
                lines.append(Line(self.workers[rank], errors, written))
            elif kind == "ended":
                self.workers[values[0]].told = values[1]
            else:
                self.said[kind] = values
        return lines, is_open

    def order(self, *order: object) -> None:
        """Send one line."""
        self.send(json.dumps(order))

    def send(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # who is gone is seen at its output
            left = memoryview(text.encode() + b"\n")
            while left:
                left = left[os.write(self._orders.fileno(), left) :]

    def started(self, rank: int, number: int) -> RemoteWorker:
        """A worker that its agent starts in the place of one that has ended; the run's so manieth."""
        self.workers[rank] = RemoteWorker(rank, self)
        self.order("start", rank, number)
        return self.workers[rank]

    def leave(self) -> None:
        """Let the agent end: it does when nobody can speak to it any more."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()

    def give_up(self) -> None:
        """Its agent does not answer, though the connection stands: it may be stopped."""
        if not self.is_gone:
            text = f"partreduce: host {self.name} does not answer; what runs there ends by itself when it does again\n"
            self.outlet.write(text, errors=True)
            self._ssh.kill()
        self.is_gone = True

    def end(self) -> str:
        """End the connection; returns how it ended."""
        self.leave()
        try:
            code = self._ssh.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            code = self._ssh.wait()
        return f"its connection ended: ssh {format_end(code)}"

    def close(self) -> None:
        for stream in (self._ssh.stdout, self._ssh.stderr):
            assert stream is not None
            stream.close()


@contextlib.contextmanager
def reached(placed: Mapping[str, Sequence[int]], *, ssh: str = "ssh", address: str | None = None) -> Iterator[Hosts]:
    """Connect to all hosts at once, and leave nothing there afterwards.

    Args:
        placed: the workers of each host, by its name as ssh knows it.
        ssh: the program with options of its own, as rsync's `-e`.
        address: of this machine, at which all hosts reach it; by default where ssh came from, as they see it.
    """
    outlet, hosts = LogMultiplexer(), list[Host]()
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables = ["env", f"PYTHONPATH={os.pathsep.join(paths)}"] if paths else []
    agent = shlex.join([*variables, sys.executable, "-P", "-m", "partreduce.runtime.launcher.agent"])
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    try:
        for name, ranks in placed.items():
            with held():
                hosts.append(Host(name, ranks, [*shlex.split(ssh), *options, name, f"exec {agent}"], outlet))
        _wait_for("hello", hosts)
        yield Hosts(hosts, address or _common_address(hosts))
    finally:
        with held():
            for host in hosts:
                host.leave()
            for host in hosts:
                host.end()
                host.close()


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts whose agents wait for a job, and the address of this machine that all of them reach."""

    hosts: Sequence[Host]
    address: str

    def launch(
        self,
        script: Path,
        args: Sequence[str],
        *,
        threads: int | None,
        environment: Mapping[str, str],
        schedule: str | None,
        patient: bool,
        generator: Generator | None = None,
        max_failures: int = 0,
        max_restarts: int = 0,
        restarted: Callable[[], object] = lambda: None,
    ) -> int:
        """Run a script in the workers of these hosts; returns as `launch.launch` does.

        Args:
            script: its path, the same on every host.
            args: of the script.
            threads: torch threads per worker; by default each host's cores are shared out among its workers.
            environment: further variables for the workers.
            schedule: the text of a schedule file, of which every host gets a copy.
            patient: as of `launch`.
            generator: likewise.
            max_failures: likewise; a host that fails takes all its workers with it.
            max_restarts: likewise, on the host on which it was.
            restarted: likewise.

        Raises:
            InputError: a host has no such script or folder, or cannot reach this machine.
        """
        workers = sorted((one for host in self.hosts for one in host.workers.values()), key=lambda one: one.rank)
        store, port = serve_store(self.address)
        settings = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
        shared = {
            RUN_SECRET: secrets.token_hex(32),
            RUN_ID: f"partreduce-{os.getpid()}",
            MASTER_ADDR: self.address,
            **environment,
            **({} if generator is not None else failure_environment(max_failures, max_restarts)),
        }
        job = {
            "script": str(script.resolve()),
            "args": list(args),
            "folder": str(Path.cwd()),
            "nodes": [list(host.workers) for host in self.hosts],
            "threads": threads,
            "restarts": max_restarts,
            "settings": settings,
            "environment": shared,
            "port": port,
            "schedule": schedule,
        }
        for node, host in enumerate(self.hosts):
            host.send(json.dumps(job | {"node": node}))
        _wait_for("ready", self.hosts)
        for host in self.hosts:
            host.order("go")
        outlet = self.hosts[0].outlet
        rule = failure_rule(
            workers, store, outlet, patient=patient, generator=generator, max_failures=max_failures,
            start=_Starts(workers, max_restarts).started, restarted=restarted,
        )  # fmt: skip
        return supervise([*workers], self.hosts, store, GRACE_SECONDS, outlet, rule=rule)


class _Starts:
    """Lost workers that may still be started again, so many in all, each by the agent that has told of its end."""

    def __init__(self, workers: Sequence[RemoteWorker], most: int) -> None:
        self._hosts, self._most, self._number = {worker.rank: worker.host for worker in workers}, most, 0

    def started(self, rank: int) -> RemoteWorker | None:
        host = self._hosts[rank]
        if host.is_gone or self._number >= self._most:
            return None
        self._number += 1
        return host.started(rank, self._number)


def _wait_for(word: str, hosts: Sequence[Host]) -> None:
    """Read what the agents say until all have said this word; their workers have written nothing yet."""
    end = time.monotonic() + START_SECONDS
    with held() as mask, selectors.DefaultSelector() as selector:
        for host in hosts:
            for descriptor in host.streams:
                selector.register(descriptor, selectors.EVENT_READ, host)
        while missing := [host for host in hosts if word not in host.said]:
            with let_through(mask):
                raise_unheard()
                ready = selector.select(timeout=0.05)
            for key, _ in ready:
                if not key.data.take(key.fd)[1]:
                    selector.unregister(key.fd)
            for host in missing:
                if "refused" in host.said:
                    raise InputError(f"host {host.name}: {host.said['refused'][0]}")
                if host.is_gone:
                    reason = f"{host.end()}; its message stands above"
                    raise UnavailableError(f"host {host.name}: did not start the workers: {reason}")
            if time.monotonic() > end:
                names = ", ".join(host.name for host in missing)
                raise UnavailableError(f"host {names}: connected, but did not answer within {START_SECONDS:g} s")


def _common_address(hosts: Sequence[Host]) -> str:
    """This machine's address as the hosts see it; one of them may be this machine itself."""
    seen = {host.name: str(host.said["hello"][0]) for host in hosts}
    outside = {address for address in seen.values() if not address.startswith("127.") and address != "::1"}
    common = outside or set(seen.values())
    if len(common) > 1 or "" in common:
        each = ", ".join(f"{name}: {address or 'no address'}" for name, address in seen.items())
        raise InputError(
            f"--address: the hosts see this machine at no common address ({each}); name one that all reach"
        )
    return common.pop()
