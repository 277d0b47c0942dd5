"""The lab's permanent processes, and the code that starts and ends them.

A process on every node imports torch once and forks the node's workers for every cell; it never opens gloo itself, so
that forking from it stays safe. Another one, next to the bridge, hosts the stores, a new one for each cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kit
from benchmarks.lab.network import Network, why_not
from benchmarks.lab.setting import Job
from benchmarks.lab.worker import SPARE_SECONDS, START_SECONDS, Board, use_environment
from partreduce.runtime.environment import GENERATOR, GENERATOR_KEYS, RUN_SECRET

FAST, START_LIMIT = "1gbit", 120.0


class LabError(Exception):
    """The lab's own code failed; the message says where."""


class NoLabError(Exception):
    """This machine cannot run the lab; the message says why."""


class _Process:
    """A process that answers each line with a line."""

    def __init__(self, command: list[str], log: Path) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self.log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables,
                cwd=kit.ROOT, start_new_session=True,
            )  # fmt: skip

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LabError(f"a process of the lab ended; see {self.log}") from None

    def answer(self, end: float) -> str:
        """Return the next line; wait for it until the monotonic time `end`."""
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as ready:  # `select.select` knows no descriptor beyond 1,023
            ready.register(stream, selectors.EVENT_READ)
            answers = ready.select(max(0.0, end - time.monotonic()))
        if not answers:
            raise LabError(f"a process of the lab did not answer in time; see {self.log}")
        line = stream.readline().strip()
        if not line:
            raise LabError(f"a process of the lab ended; see {self.log}")
        return line

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and its children; workers end with the process that forked them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=3)
                break
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Crew:
    """The lab's processes on a network, until `close`."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self._nodes: list[_Process] = []
        self._store: _Process | None = None

    def start(self) -> None:
        network, python = self.network, [sys.executable, "-m", "benchmarks.lab.crew"]
        inside = ["ip", "netns", "exec", network.switch]
        self._store = _Process([*inside, *python, "store", network.switch_address], self.folder / "store.log")
        for node in range(network.num_nodes):
            command = [*network.prefix_command(node), *python, str(node)]
            self._nodes.append(_Process(command, self.folder / f"node-{node}.log"))
        end = time.monotonic() + START_LIMIT
        for process in [self._store, *self._nodes]:
            process.answer(end)

    def restart(self) -> None:
        """End all processes and start new ones, after one of them failed."""
        self.close()
        self.start()

    def close(self) -> None:
        for process in [*self._nodes, *([self._store] if self._store else [])]:
            process.close()
        self._nodes, self._store = [], None

    def run(self, job: Job) -> list[int]:
        """Run one cell on all nodes; return the exit code of each node's workers. The job's limits bound the time."""
        assert self._store is not None
        job.path.mkdir(parents=True, exist_ok=True)
        Board(job.path, job.num_workers, create=True)
        self._store.send("new")
        port = int(self._store.answer(time.monotonic() + 20).split()[1])
        with self._generator(job) as environment:
            # Every node's launcher makes its own secret, which keeps strangers from this machine's workers; those
            # of one run on several nodes need the same.
            known = {RUN_SECRET: secrets.token_hex(32), **environment}
            ready = replace(job, port=port, address=self.network.switch_address, environment=known)
            for node in self._nodes:
                node.send(ready.to_line())
            end = time.monotonic() + START_SECONDS + job.limit + 2 * SPARE_SECONDS
            return [int(node.answer(end).split()[1]) for node in self._nodes]

    @contextlib.contextmanager
    def _generator(self, job: Job) -> Iterator[dict[str, str]]:
        """Context manager: run the group generator if a schedule needs one; yield environment variables for workers."""
        if job.schedule is None or json.loads(Path(job.schedule).read_text())["strategy"]["kind"] != "dynamic_groups":
            yield {}
            return
        keys, workers, address = (job.path / name for name in ("keys.json", "worker-keys.json", "address"))
        command = ["ip", "netns", "exec", self.network.switch, sys.executable, "-P", "-m", "partreduce", "generator"]
        command += [job.schedule, "--keys", str(keys), "--worker-keys", str(workers), "--address-file", str(address)]
        command += ["--address", f"tcp://{self.network.switch_address}:*", "--log", str(job.path / "generator-log")]
        process = _Process(command, job.path / "generator.log")
        try:
            end = time.monotonic() + START_LIMIT
            while not address.exists():
                if time.monotonic() > end or not process.is_running:
                    raise RuntimeError(f"the group generator did not start: {process.log.read_text()[-300:]}")
                time.sleep(0.02)
            yield {GENERATOR: address.read_text().strip(), GENERATOR_KEYS: workers.read_text()}
        finally:
            process.close()


@dataclass(frozen=True, slots=True)
class Lab:
    network: Network
    crew: Crew
    scratch: Path

    def shape(self, rate: str) -> None:
        for node in range(self.network.num_nodes):
            self.network.shape(node, rate)

    def job(self, name: str, how: str, workers_per_node: int, **fields: Any) -> Job:
        folder = Path(tempfile.mkdtemp(prefix=f"{how}-", dir=self.scratch))
        size = {"num_nodes": self.network.num_nodes, "workers_per_node": workers_per_node}
        return Job(name=name, folder=str(folder), how=how, **size, **fields)


@contextlib.contextmanager
def standing(num_nodes: int) -> Iterator[Lab]:
    """Context manager: set up the lab with so many nodes and fast links; SIGTERM ends it properly."""
    if (reason := why_not()) is not None:
        raise NoLabError(reason)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    scratch = Path(tempfile.mkdtemp(prefix="partreduce-lab-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with Network(num_nodes, FAST) as network, contextlib.closing(Crew(network, scratch)) as crew:
            crew.start()
            yield Lab(network, crew, scratch)
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(scratch, ignore_errors=True)


def provenance(module: str) -> dict[str, object]:
    """Return where and with what versions a module of the benchmarks measured."""
    import torch

    return {
        "commit": kit.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Linux {os.uname().release}, torch {torch.__version__}, gloo",
        "command": kit.command(module),
    }


def serve_workers(node: int) -> None:
    """Fork workers until standard input ends: a job per line, answered by `done CODE`."""
    import torch._dynamo
    import torch.distributed.algorithms.model_averaging.averagers  # noqa: F401 - once, before the forks

    import partreduce.runtime

    kit.import_all(partreduce.runtime)
    from benchmarks.lab.tasks import read_data
    from benchmarks.lab.worker import work
    from partreduce.runtime.launcher.launch import launch

    samples: dict[str, object] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        job = Job.of_line(line)
        if job.how == "profile":  # before any data are written
            target = partial(profile, job, node)
        else:
            if job.data_file not in samples:
                samples[job.data_file] = read_data(job.data_file)
            target = partial(work, job, node, samples[job.data_file])
        with (job.path / f"node-{node}.log").open("w") as log:
            code = launch(target, num_workers=job.workers_of_nodes[node], threads=1, output=log)
        print(f"done {code}", flush=True)


def serve_stores(address: str) -> None:
    """Open a new store for every line, close the previous one, and print its port."""
    from partreduce.runtime.transport.torch_api import TCPStore

    print("ready", flush=True)
    store = None
    for _ in sys.stdin:
        store = None
        store = TCPStore(address, 0, None, True, wait_for_workers=False)
        print(f"port {store.port}", flush=True)
    del store


def profile(job: Job, node: int) -> None:
    """Profile the links with all workers of the run; rank 0 writes a cluster file."""
    from partreduce.runtime.profile import profile as measure
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.document.cluster import write_cluster

    kit.end_after(job.limit + 60)
    rank = use_environment(job, node)
    cluster = Cluster.regular(job.num_nodes, job.workers_per_node)
    found = measure(cluster, model_bytes=int(job.options["model_bytes"]), repetitions=3, num_checks=6, timeout=60.0)
    if rank == 0:
        write_cluster(job.path / "cluster.json", found.cluster)


if __name__ == "__main__":
    if sys.argv[1] == "store":
        serve_stores(sys.argv[2])
    else:
        serve_workers(int(sys.argv[1]))
