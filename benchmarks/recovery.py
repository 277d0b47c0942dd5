"""Kill to next step: how long a run that goes on stands still when a worker dies, and until that one is back.

python -m benchmarks.recovery      # four minutes on two quiet cores; writes results/recovery.md

Local workers average gradients of a small network in each step, which takes them 20 ms otherwise. Again and again one
of them is killed from outside, at a random instant, and started again by the launcher. Measured is the time until all
others have finished a step that the dead one can have had no part in: two steps after its last. That is one ordinary
step more than the recovery itself takes.
"""

from __future__ import annotations

import itertools
import json
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

SIZES, KILLS, SEED = (8, 16), 20, 0
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
        step = optimizer.steps
        optimizer.step()
        print(json.dumps([optimizer.steps - 1, time.monotonic()]), file=file)
optimizer.finish()
"""


@dataclass
class Diary:
    """What one worker has written, read as far as it goes."""

    path: Path
    pids: list[int] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Of the present process: each step, and when it was done."""
    _place: int = 0

    def read(self) -> Diary:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._place)
                whole = file.read().rpartition(b"\n")[0]
            self._place += len(whole) + bool(whole)
            for what, value in map(json.loads, whole.splitlines()):
                if what == "pid":
                    self.pids.append(value)
                    self.steps = []
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
class Found:
    """Seconds of every kill, in order; and between ordinary steps."""

    stood: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


def measure(workers: int, kills: int, chance: random.Random) -> Found:
    """Kill and wait, so many times in one run."""
    found = Found()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script, schedule = folder / "train.py", folder / "schedule.json"
        script.write_text(SCRIPT)
        cli = [sys.executable, "-m", "partreduce"]
        made = [*cli, "design", f"1x{workers}", "--using", "allreduce", "-o", str(schedule)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        options = ["--threads", "1", "--survive", "1", "--max-restarts", str(kills)]
        command = [*cli, "run", "--schedule", str(schedule), *options, str(script), str(schedule), str(folder)]
        with (folder / "said.txt").open("wb") as said, subprocess.Popen(
            [*command, str(STEP_SECONDS)], stdout=said, stderr=said
        ) as run:  # fmt: skip
            try:
                diaries = [Diary(folder / f"{rank}.jsonl") for rank in range(workers)]
                for _ in range(kills):
                    _kill_one(diaries, found, chance, run)
            finally:
                run.send_signal(signal.SIGTERM)
    return found


def _kill_one(diaries: list[Diary], found: Found, chance: random.Random, run: subprocess.Popen[bytes]) -> None:
    until(lambda: all(len(diary.read().steps) > 10 for diary in diaries), "all train", run)
    time.sleep(chance.uniform(*SETTLING))
    victim = chance.randrange(len(diaries))
    times = [instant for _, instant in diaries[victim - 1].read().steps[-10:]]
    found.steps += [after - before for before, after in itertools.pairwise(times)]
    died = time.monotonic()
    os.kill(diaries[victim].pids[-1], signal.SIGKILL)
    time.sleep(0.02)
    after = diaries[victim].read().steps[-1][0] + 2
    others = [diary for rank, diary in enumerate(diaries) if rank != victim]

    def done(diary: Diary) -> float | None:
        return next((instant for step, instant in diary.read().steps if step >= after), None)

    until(lambda: all(done(diary) is not None for diary in others), "the others go on", run)
    found.stood.append(max(done(diary) or 0.0 for diary in others) - died)
    before = len(diaries[victim].pids)
    until(lambda: len(diaries[victim].read().pids) > before and bool(diaries[victim].steps), "it is back", run)
    found.back.append(diaries[victim].steps[0][1] - died)


def main() -> None:
    options = kit.parser(__doc__ or "")
    options.add_argument("--kills", type=int, default=KILLS)
    kills = options.parse_args().kills
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for workers in SIZES:
        found = measure(workers, kills, random.Random(SEED))
        step, stood, back = (statistics.median(one) for one in (found.steps, found.stood, found.back))
        rows.append(
            (workers, len(found.stood), f"{step:.3f}", f"{stood:.2f}", f"{max(found.stood):.2f}", f"{back:.2f}",
             f"{max(found.back):.2f}")
        )  # fmt: skip
        print(rows[-1], flush=True)
    kit.write(
        kit.RESULTS / "recovery.md",
        "Kill to next step",
        f"`{kit.command('recovery')}`, {kit.machine()}. Seconds, of one run of each size; gradients, over gloo.",
        kit.table(
            ("workers", "kills", "a step", "kill → next step, p50", "worst", "kill → all are back, p50", "worst"), rows
        ),
        "The next step is the first that all others have done and the dead one can have had no part in; one ordinary "
        "step is in it. All are back when who was started again has done a step with the others.",
    )


if __name__ == "__main__":
    main()
