"""SIGKILL of the generator: at named points of its loop, and of `partreduce generator`; how soon it answers again."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from helpers.generator_rig import KILL_POINTS, ServiceProcess, check_orders, run_workers, setting_of, started_by
from partreduce.runtime.generator.keys import JobKeys
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.generated import Division, Generated

WORKERS = 4


class Workers:
    """Four workers in threads, and when which life of the service answered them."""

    def __init__(self, address: str, keys: JobKeys, **options: int | tuple[int, ...]) -> None:
        self.executed: dict[int, Any] = {}
        self.answers: list[tuple[int, float]] = []

        def run() -> None:
            def noted(epoch: int) -> None:
                self.answers.append((epoch, time.monotonic()))

            self.executed.update(run_workers(address, keys, WORKERS, on_answer=noted, **options))

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def first_answer(self, epoch: int) -> float | None:
        """When a life of the service with this epoch, or a later one, first answered; None if all ended before it did.

        An answer of an earlier life that was on its way when that was killed is not counted.
        """
        while True:
            over = not self.thread.is_alive()
            found = [instant for life, instant in list(self.answers) if life >= epoch]
            if found or over:
                return min(found, default=None)
            time.sleep(0.005)


def at_points() -> list[dict[str, Any]]:
    """The service kills itself at each named point; its workers go on with the next one."""
    rows = []
    for point, after in KILL_POINTS:
        with tempfile.TemporaryDirectory() as folder:
            place, keys = Path(folder), JobKeys.make()
            keys.write(place / "keys")
            first = ServiceProcess(place, keys, seed=5, point=point, after=after)
            workers = Workers(first.address, keys, rounds=6)
            killed = first.killed()
            instant = time.monotonic()
            second = ServiceProcess(place, keys, seed=5, address=first.address)
            answered = workers.first_answer(second.epoch)
            workers.thread.join(60)
            for service in (first, second):
                service.end()
            assert killed, f"{point} was never reached"
            assert len(workers.executed) == WORKERS, f"workers hang after a kill at {point}"
            started = started_by(place / "log", setting_of(5))
            check_orders(started, workers.executed)
            assert answered is not None, f"nobody was answered after a kill at {point}"
            seconds = answered - instant
            rows.append({"point": point, "time": after, "groups": len(started), "seconds_to_answer": seconds})
    return rows


def of_the_command(kills: int) -> dict[str, Any]:
    """`partreduce generator` is killed from outside again and again, and started again on its log and port."""
    with tempfile.TemporaryDirectory() as folder:
        place, keys = Path(folder), JobKeys.make()
        keys.write(place / "keys")
        strategy = Generated(group_size=2, division=Division.GLOBAL, slow_threshold=None)
        schedule = Schedule("kills", Cluster.regular(1, WORKERS), strategy)
        write_schedule(place / "schedule.json", schedule)
        command = [sys.executable, "-P", "-m", "partreduce", "generator", str(place / "schedule.json")]
        command += [
            "--keys",
            str(place / "keys"),
            "--log",
            str(place / "log"),
            "--address-file",
            str(place / "address"),
        ]

        def start(*more: str) -> subprocess.Popen[bytes]:
            root = Path(__file__).resolve().parents[2]
            return subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL, cwd=root)

        process = start()
        while not (place / "address").exists():
            assert process.poll() is None, "the generator did not start"
            time.sleep(0.01)
        address = (place / "address").read_text()
        workers = Workers(address, keys, rounds=80 * kills, slow=tuple(range(WORKERS)))
        seconds: list[float] = []
        workers.first_answer(0)
        for life in range(1, kills + 1):  # every start on a log with records begins the next epoch
            time.sleep(0.4)
            process.send_signal(signal.SIGKILL)
            instant = time.monotonic()
            process.wait()
            process = start("--address", address)
            answered = workers.first_answer(life)
            assert answered is not None, "the workers ended before all kills were done"
            seconds.append(answered - instant)
        workers.thread.join(120)
        process.terminate()
        process.wait()
        assert len(workers.executed) == WORKERS, "workers hang"
        started = started_by(place / "log", GeneratorSetting.of(strategy, schedule.cluster))
        check_orders(started, workers.executed)
        return {"kills": kills, "groups": len(started), "seconds_to_answer": seconds}
