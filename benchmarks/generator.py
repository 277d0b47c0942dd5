"""The group generator under a rough wire, under SIGKILL, and by the clock.

    python -m benchmarks.generator [--runs 1000] [--kills 12] [--rounds 100] [--repeat 3] [-o FILE]

* runs: four workers against a real service over a wire that drops, doubles and delays messages; after each run every
  worker's executed groups are compared with the service's order. The message of a run that fails names its seed.
* kills: `partreduce generator` is killed from outside again and again, and started again on its log and port; how soon
  a worker is answered by the new life, process start and imports included (goal: < 2 s).
* latency: from `begin` to the answer, of clients that are threads of one process, with the service in another; it
  includes waiting for the partner to ask, as no time is spent computing.

Ends with 1 if a group was lost, doubled or out of order.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kit import command, machine, middle, parser, table, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # the rig of the generator's tests

from helpers.generator_rig import check_orders, randomised_run, run_workers, started_by  # noqa: E402
from partreduce.runtime.generator.client import GeneratorClient  # noqa: E402
from partreduce.runtime.generator.keys import JobKeys  # noqa: E402
from partreduce.runtime.generator.service import GeneratorService  # noqa: E402
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting  # noqa: E402
from partreduce.topo.cluster import Cluster  # noqa: E402
from partreduce.topo.document.writer import write_schedule  # noqa: E402
from partreduce.topo.schedule import Schedule  # noqa: E402
from partreduce.topo.strategies.generated import Division, Generated  # noqa: E402

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORKERS = 4
PAIRS = Generated(group_size=2, division=Division.GLOBAL, slow_threshold=None)


def rough_runs(seeds: range) -> int:
    """Run all seeds; the number of groups.

    Raises:
        AssertionError: a worker did not execute exactly its groups in order.
    """
    groups = 0
    for seed in seeds:
        started, executed = randomised_run(seed)
        try:
            check_orders(started, executed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        groups += len(started)
    return groups


def kills(count: int) -> tuple[int, list[float]]:
    """Groups of one run in which the command was killed so often, and seconds from each kill to an answer."""
    with tempfile.TemporaryDirectory() as folder:
        place, keys = Path(folder), JobKeys.make()
        keys.write(place / "keys")
        schedule = Schedule("kills", Cluster.regular(1, WORKERS), PAIRS)
        write_schedule(place / "schedule.json", schedule)
        words = [sys.executable, "-P", "-m", "partreduce", "generator", str(place / "schedule.json")]
        for name in ("keys", "log", "address-file"):
            words += [f"--{name}", str(place / name)]

        def start(*more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([*words, *more], stdout=subprocess.DEVNULL, cwd=ROOT)

        process = start()
        while not (place / "address-file").exists():
            assert process.poll() is None, "the generator did not start"
            time.sleep(0.01)
        address = (place / "address-file").read_text()
        executed: dict[int, Any] = {}
        answers: list[tuple[int, float]] = []  # the life of the service that answered, and when

        def train() -> None:
            def noted(epoch: int) -> None:
                answers.append((epoch, time.monotonic()))

            slow = tuple(range(WORKERS))
            executed.update(run_workers(address, keys, WORKERS, on_answer=noted, rounds=80 * count, slow=slow))

        thread = threading.Thread(target=train)
        thread.start()

        def answered(life: int) -> float:
            """When this life of the service, or a later one, first answered; earlier ones' last words do not count."""
            while True:
                over = not thread.is_alive()
                if found := [instant for epoch, instant in list(answers) if epoch >= life]:
                    return min(found)
                assert not over, "the workers ended before all kills were done"
                time.sleep(0.005)

        seconds: list[float] = []
        answered(0)
        for life in range(1, count + 1):  # every start on a log with records begins the next epoch
            time.sleep(0.4)
            process.send_signal(signal.SIGKILL)
            instant = time.monotonic()
            process.wait()
            process = start("--address", address)
            seconds.append(answered(life) - instant)
        thread.join(120)
        process.terminate()
        process.wait()
        assert len(executed) == WORKERS, "workers hang"
        started = started_by(place / "log", GeneratorSetting.of(PAIRS, schedule.cluster))
        check_orders(started, executed)
        return len(started), seconds


def _serve(keys: JobKeys, setting: GeneratorSetting, log: str | None, pipe: Connection) -> None:
    service = GeneratorService(setting, keys, log=log)
    pipe.send(service.address)
    service.run(300)
    service.close()


def latency(num_clients: int, rounds: int, *, logged: bool) -> tuple[list[float], float]:
    """Milliseconds of all requests, of clients that ask as fast as they can, and requests per second."""
    keys = JobKeys.make()
    setting = GeneratorSetting.of(PAIRS, Cluster.regular(num_clients // 4, 4))
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        here, there = multiprocessing.Pipe()
        log = str(Path(folder) / "log") if logged else None
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(keys, setting, log, there))
        process.start()
        address = here.recv()

        def one(rank: int) -> None:
            client = GeneratorClient(address, keys.for_workers(), rank)
            for _ in range(rounds):
                began = time.perf_counter()
                client.begin()
                client.group()
                taken.append(1e3 * (time.perf_counter() - began))
            while client.leave() is not None:
                pass
            client.close()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(num_clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        process.join(10)
        process.terminate()
    return sorted(taken), len(taken) / seconds


def latencies(rounds: int, repeat: int) -> list[list[object]]:
    """A row for 16 and 64 clients, without and with a log: the median run by its median."""
    rows: list[list[object]] = []
    for num_clients in (16, 64):
        for logged in (False, True):
            runs = [latency(num_clients, rounds, logged=logged) for _ in range(repeat)]
            runs.sort(key=lambda run: statistics.median(run[0]))
            taken, per_second = runs[len(runs) // 2]
            medians = middle([statistics.median(run[0]) for run in runs], ".1f")
            log = "on disk" if logged else "none"
            rows.append([num_clients, log, medians, f"{taken[int(0.99 * len(taken))]:.0f}", f"{per_second:.0f}"])
    return rows


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--kills", type=int, default=12)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    rows = latencies(chosen.rounds, chosen.repeat)
    try:
        killed_groups, seconds = kills(chosen.kills)
        with ProcessPoolExecutor(2) as pool:
            groups = sum(pool.map(rough_runs, [range(chosen.runs // 2), range(chosen.runs // 2, chosen.runs)]))
    except AssertionError as error:
        print(f"wrong: {error}", flush=True)
        return 1
    write(
        chosen.output,
        "The group generator, measured",
        f"`{command('generator')}`; {machine()} at the end.",
        f"**Rough wire.** {chosen.runs} randomised runs of {WORKERS} workers (15 % of the messages dropped, 15 % "
        f"doubled, 30 % late), {groups} groups: on every worker the executed order is the service's; none lost, none "
        "doubled.",
        f"**Kills.** `partreduce generator` was killed {chosen.kills} times in one run ({killed_groups} groups): "
        f"nothing lost, nothing doubled. From the signal until a worker is answered: {middle(seconds)} s.",
        "**Latency** from the question to the answer, waiting for the partner included.",
        table(["clients", "log", "median, ms [of the runs]", "99th percentile, ms", "requests per second"], rows),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
