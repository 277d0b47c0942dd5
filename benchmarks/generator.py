"""The group generator under a rough wire, and under SIGKILL.

    python -m benchmarks.generator [--runs 1000] [--kills 12] [-o FILE]

* runs: four workers against a real service over a wire that drops, doubles and delays messages; after each run every
  worker's executed groups are compared with the service's order. The message of a run that fails names its seed.
* kills: `partreduce generator` is killed from outside again and again, and started again on its log and port; how soon
  a worker is answered by the new life, process start and imports included (goal: < 2 s).

Ends with 1 if a group was lost, doubled or out of order.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kit import command, machine, middle, parser, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # the rig of the generator's tests

from helpers.generator_rig import check_orders, randomised_run, run_workers, started_by  # noqa: E402
from partreduce.runtime.generator.keys import JobKeys  # noqa: E402
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting  # noqa: E402
from partreduce.topo.cluster import Cluster  # noqa: E402
from partreduce.topo.document.writer import write_schedule  # noqa: E402
from partreduce.topo.schedule import Schedule  # noqa: E402
from partreduce.topo.strategies.generated import Division, Generated  # noqa: E402

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


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--kills", type=int, default=12)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
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
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
