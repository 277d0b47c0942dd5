"""Kill to next step: how long a run that continues stands still when a worker dies, and until that one is back.

python -m benchmarks.recovery [--sizes 4 8 16] [-o benchmarks/results/recovery.md]   # four minutes on two quiet cores

Local workers average gradients of a small network in each step, which takes them 20 ms otherwise. Again and again one
of them is killed from outside, at a random instant, and started again by the launcher. Measured is the time until all
others have finished a step that the dead one can have had no part in: two steps after its last. That is one ordinary
step more than the recovery itself takes. A batch is lost if its gradients were computed and entered no step.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import kit

SIZES, KILLS, SEED = (4, 8, 16), 20, 0
KILLS_A_RUN = 5
STEP_SECONDS = 0.02
SETTLING = (0.3, 0.8)
"""Seconds from when all are back to the next kill."""
LIMIT = 120.0
"""Seconds after which something that is waited for is given up, which ends the benchmark with an error."""

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
import partreduce

folder, pause = Path(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sys.argv[1], timeout=60)
draw = torch.Generator().manual_seed(optimizer.rank)
with open(folder / f"{optimizer.rank}.jsonl", "a", buffering=1) as file:
    print(json.dumps(["pid", os.getpid()]), file=file)
    while not (folder / f"stop-{optimizer.steps}").exists():
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=draw)).square().mean().backward()
        time.sleep(pause)
        before = optimizer.steps
        optimizer.step()
        after = optimizer.steps
        print(json.dumps([after - 1 if after > before else "discarded", time.monotonic()]), file=file)
optimizer.finish()
"""


@dataclass
class Diary:
    """What one worker has written, read as far as it goes."""

    path: Path
    pids: list[int] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Of the present process: each step, and when it was done."""
    discarded: list[float] = field(default_factory=list)
    """When a batch was computed and entered no step."""
    _place: int = 0

    def read(self) -> Diary:
        lines, self._place = kit.new_lines(self.path, self._place)
        for what, value in lines:
            if what == "pid":
                self.pids.append(value)
                self.steps = []
            elif what == "discarded":
                self.discarded.append(value)
            else:
                self.steps.append((what, value))
        return self


def until(found: Callable[[], bool], what: str, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    while not found():
        if time.monotonic() > deadline or run.poll() is not None:
            raise SystemExit(f"recovery: {what}: not within {LIMIT:g} s, or the run ended with {run.poll()}")
        time.sleep(0.002)


@dataclass
class KillTimes:
    """Of every kill, in order: seconds, and the batches that the others lost; seconds between ordinary steps."""

    stood: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    fallen: int = 0
    """How many workers ended that were not killed."""


def command_of(folder: Path, workers: int, kills: int) -> list[str]:
    """`partreduce run` with so many workers, of which as many are started again as are killed."""
    script, schedule = folder / "train.py", folder / "schedule.json"
    script.write_text(SCRIPT)
    cli = [sys.executable, "-m", "partreduce"]
    made = [*cli, "design", f"1x{workers}", "--build", "allreduce", "-o", str(schedule)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    options = ["--threads", "1", "--tolerate-failures", "1", "--max-restarts", str(kills)]
    command = [*cli, "run", "--schedule", str(schedule), *options, str(script), str(schedule), str(folder)]
    return [*command, str(STEP_SECONDS)]


def measure(workers: int, kills: int, chance: random.Random, found: KillTimes) -> None:
    """Kill and wait, so many times in one run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with (folder / "said.txt").open("wb") as said, subprocess.Popen(
            command_of(folder, workers, kills), stdout=said, stderr=said
        ) as run:  # fmt: skip
            try:
                diaries = [Diary(folder / f"{rank}.jsonl") for rank in range(workers)]
                for _ in range(kills):
                    _kill_one(diaries, found, chance, run)
                found.fallen += sum(len(diary.pids) - 1 for diary in diaries) - kills
            except SystemExit:
                print((folder / "said.txt").read_text()[-4000:], flush=True)
                raise
            finally:
                run.send_signal(signal.SIGTERM)


def _kill_one(diaries: list[Diary], found: KillTimes, chance: random.Random, run: subprocess.Popen[bytes]) -> None:
    def all_train() -> bool:
        return all(len(diary.read().steps) > 10 for diary in diaries)

    until(all_train, "all train", run)
    time.sleep(chance.uniform(*SETTLING))
    victim = chance.randrange(len(diaries))
    times = [instant for _, instant in diaries[victim - 1].read().steps[-10:]]
    found.steps += [after - before for before, after in itertools.pairwise(times)]
    died = time.monotonic()
    os.kill(diaries[victim].pids[-1], signal.SIGKILL)
    time.sleep(0.02)
    after = diaries[victim].read().steps[-1][0] + 2
    others = [diary for rank, diary in enumerate(diaries) if rank != victim]

    def finish_time(diary: Diary) -> float | None:
        return next((instant for step, instant in diary.read().steps if step >= after), None)

    until(lambda: all(finish_time(diary) is not None for diary in others), "the others continue", run)
    found.stood.append(max(finish_time(diary) or 0.0 for diary in others) - died)
    before = len(diaries[victim].pids)
    until(lambda: len(diaries[victim].read().pids) > before and bool(diaries[victim].steps), "it is back", run)
    found.back.append(diaries[victim].steps[0][1] - died)
    until(all_train, "all train again", run)
    found.lost.append(sum(instant > died for diary in others for instant in diary.read().discarded))


HEAD = (
    "workers", "kills", "a step", "kill → next step, p50", "worst", "kill → all are back, p50", "worst",
    "batches lost a kill", "fell besides",
)  # fmt: skip
WORDS = (
    "The next step is the first that all others have done and the dead one can have had no part in; one ordinary step "
    "is in it. All are back when who was started again has done a step with the others. Batches lost are those of the "
    "others whose gradients entered no step; the dead one's own is lost besides. Fell besides: workers that were not "
    "killed and ended nevertheless."
)


def _metrics(found: KillTimes) -> tuple[object, ...]:
    def seconds(each: list[float]) -> tuple[str, str]:
        return f"{statistics.median(each):.2f}", f"{max(each):.2f}"

    step, lost = f"{statistics.median(found.steps):.3f}", f"{statistics.mean(found.lost):.1f}"
    return len(found.stood), step, *seconds(found.stood), *seconds(found.back), lost, found.fallen


def main() -> None:
    options = kit.parser(__doc__ or "")
    options.add_argument("--kills", type=int, default=KILLS)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="workers")
    options.add_argument("-o", "--output", type=Path)
    chosen = options.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chance, rows = random.Random(SEED), []
    for workers in chosen.sizes:
        found = KillTimes()
        for killed in range(0, chosen.kills, KILLS_A_RUN):
            measure(workers, min(KILLS_A_RUN, chosen.kills - killed), chance, found)
            print(workers, found, os.getloadavg()[0], flush=True)
        rows.append((workers, *_metrics(found)))
    about = f"`{kit.command('recovery')}`, {kit.machine()}. Seconds; gradients, over gloo."
    kit.write(chosen.output, "Kill to next step", about, kit.table(HEAD, rows), WORDS)


if __name__ == "__main__":
    main()
