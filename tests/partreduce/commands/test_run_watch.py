"""`partreduce run --watch`: what it shows is true, of every kind of schedule, and the script's own lines stay whole."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.warm import WARM
from partreduce.__main__ import main
from partreduce.report.watch import screen
from partreduce.report.watch.history import Gaps, Speed, gaps_of
from partreduce.report.watch.picture import Picture
from partreduce.report.watch.words import picture_line
from partreduce.runtime.watch import progress_publisher
from partreduce.runtime.watch.progress import Progress
from partreduce.runtime.watch.published_progress import SLOT_BYTES, PublishedProgress, Report, Slot
from partreduce.runtime.watch.status import GapStatus
from partreduce.topo.cluster import Cluster
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.gap import Gap
from partreduce.topo.strategies.neighbor import Neighbor

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, signal, sys, time, torch
from partreduce import DistributedOptimizer
model = torch.nn.Linear(4, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = DistributedOptimizer(sgd, model, os.environ["PARTREDUCE_SCHEDULE"], timeout=20)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    print("did step", step)
    print("oddly", step, file=sys.stderr)
    time.sleep(0.05)
    if optimizer.rank == 1 and step == 9:
        print("pauses")
        if os.fork() == 0:
            while open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)  # to go on before it stands still would be to stand still for ever
            time.sleep(4)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
optimizer.finish()
"""
QUICK = """
import os, sys
import partreduce.report.watch.screen as screen
from partreduce.__main__ import main
screen.LINE_SECONDS = screen.DRAW_SECONDS = 0.4
terminal = os.dup(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
code = main(sys.argv[1:])
os.dup2(terminal, 1), os.dup2(terminal, 2), os.close(terminal)
sys.exit(code or main(sys.argv[1:]))
"""


@pytest.fixture
def own_slot():
    yield Slot
    Slot.own = None


def status(**changes):
    values = {"tokens": (2, 0), "updates": (1, 3), "capacities": (3, 4), "sent": 7, "received": 8}
    return GapStatus(**values | changes)


def test_a_board_says_what_each_process_wrote_into_its_slot(own_slot):
    published = PublishedProgress(3)
    assert published.steps() == [None, None, None]
    assert published.report(1) is None
    published.claim(1)
    progress = Progress()
    progress.enter(4)
    assert published.steps()[1] is None, "nothing is said before the optimizer is there"
    assert progress.begin()
    assert not Progress().begin(), "a second optimizer of the process would mix its steps with those of the first"
    report = Report(1, "waits in step 4 for a token", (0, 2), 1, status())
    progress.report(report)
    assert published.steps() == [None, 4, None]
    assert published.report(1) == report
    own_slot.own._numbers[1] += 1  # as while it writes
    own_slot.own._memory[SLOT_BYTES + 24 : SLOT_BYTES + 30] = b"######"
    assert published.report(1) == report
    progress.end()
    assert Progress().begin()


def test_a_report_of_very_many_queues_keeps_the_fullest(own_slot):
    published = PublishedProgress(1)
    published.claim(0)
    many = status(tokens=(5,) * 2000, updates=(1,) * 1999 + (3,), capacities=(4,) * 2000)
    own_slot.own.write(Report(1, "x" * 9999, tuple(range(999)), 1, many))
    read = published.report(0)
    assert read.gap == status(tokens=(5,), updates=(3,), capacities=(4,))
    assert read.gap.fullest == (3, 4)


def test_gaps_that_are_read_while_workers_run_are_never_above_the_truth():
    """Two processes that hand a token to and fro are never more than one step apart, and one step apart they are."""
    published = PublishedProgress(2)
    down, up = os.pipe(), os.pipe()
    children = []
    for rank, (read, write) in enumerate([(up[0], down[1]), (down[0], up[1])]):
        children.append(os.fork())
        if children[-1] == 0:
            published.claim(rank)
            for step in range(20_000):
                Slot.own.enter(step)
                os.write(write, b"x")
                os.read(read, 1)
            os._exit(0)
    gaps = Gaps([[1], [0]], ((0, 1), (1, 0)))
    while os.waitpid(children[0], os.WNOHANG)[0] == 0:
        for _ in range(100):
            gaps.add(published.places(), published.places())
    os.waitpid(children[1], 0)
    for descriptor in (*down, *up):
        os.close(descriptor)
    assert [gap.steps for gap in gaps.largest] == [1, 1]
    assert published.steps() == [19_999, 19_999]


def test_speed_is_that_of_the_last_seconds_and_falls_when_a_worker_stands_still():
    speed = Speed()
    for tenth in range(100):
        speed.add(tenth / 10, tenth // 2)
    assert speed.steps_per_second(9.9) == pytest.approx(5.0, rel=0.05)
    assert speed.steps_per_second(19.9) < 2.0
    speed.add(20, 3)  # from an earlier checkpoint
    assert speed.steps_per_second(21) is None
    slow = Speed()
    for hour in range(3):
        slow.add(3600 * hour, hour)
    assert slow.steps_per_second(7300) == pytest.approx(1 / 3600)


def test_a_line_says_who_is_behind_whom_it_waits_for_and_how_far_gaps_and_queues_are_from_their_limits(own_slot):
    now = [0.0]
    published = PublishedProgress(4)
    picture = Picture(published, Gaps([[1, 3], [0, 2], [1, 3], [2, 0]], ((0, 4, 9, 4),) * 4), clock=lambda: now[0])
    steps = {0: 7, 1: 4, 2: 5, 3: 8}
    for rank, step in steps.items():
        published.claim(rank)
        own_slot.own.enter(step)
        waits = {0: (1, 3), 3: (2, 0)}.get(rank, ())
        own_slot.own.write(Report(1, f"is in step {step}", waits, 1, status()))
    picture.look()
    rows = picture.rows({0: None, 1: None, 2: None, 3: 137}, lambda rank: "")
    assert [row.ahead for row in rows] == [3, 0, 1, None]
    assert rows[0].does == "is in step 7 (on worker 1)"
    assert rows[3].does == "was killed by signal 9"
    assert str(rows[0].gap) == "3/4"
    assert (rows[1].gap.worker, rows[1].gap.neighbor) == (0, 1), "seen from the one that is behind"
    now[0] = 9.0
    line = picture_line(picture.rows({0: None, 1: None, 2: None, 3: 137}, lambda rank: ""), 9.0)
    assert line.startswith("4 workers after 9 s: steps 4 to 7")
    assert "gap 3/4 (worker 0 over 1); largest gap so far 3/4; fullest queue 3/4; fewest tokens 0; sent 28 B" in line
    assert "worker 1 is in step 4, and gave no sign of life for 9 s" in line


def test_a_worker_whose_data_has_ended_is_not_behind_those_that_go_on(own_slot):
    published = PublishedProgress(4)
    picture = Picture(published, clock=lambda: 0.0)
    for rank, (step, rests) in enumerate([(30, False), (7, True), (28, False), (9, True)]):
        published.claim(rank)
        own_slot.own.enter(step)
        own_slot.own.write(Report(1, progress_publisher.RESTS if rests else f"computes step {step}", rests=rests))
    picture.look()
    codes = dict.fromkeys(range(4))
    rows = picture.rows(codes, lambda rank: "")
    assert [row.ahead for row in rows] == [2, None, 0, None]
    line = picture_line(rows, 3.0)
    assert line.startswith("4 workers after 3 s: steps 28 to 30")
    assert "slowest is worker 2, 2 behind: computes step 28; workers 1, 3 have ended their steps" in line
    for rank in (0, 2):
        published.claim(rank)
        own_slot.own.write(Report(2, progress_publisher.RESTS, rests=True))
    assert picture_line(picture.rows(codes, lambda rank: ""), 3.0) == "4 workers after 3 s: all have ended their steps"


def _read_to_the_end(descriptor, seen):
    with contextlib.suppress(OSError), os.fdopen(descriptor, "rb", buffering=0) as terminal:  # the error says: closed
        while chunk := terminal.read(65536):
            seen += chunk


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """What one job shows without a terminal (output and errors), and the same job on one of 8 lines."""
    folder = tmp_path_factory.mktemp("job")
    assert main(["design", "2x2", "--using", "prague-figure-10", "-o", str(folder / "s.json")]) == 0
    (folder / "train.py").write_text(SCRIPT)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 110, 0, 0))
    arguments = ["run", "--watch", "--schedule", str(folder / "s.json"), str(folder / "train.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    seen = bytearray()
    reader = threading.Thread(target=_read_to_the_end, args=(ours, seen))
    reader.start()
    try:
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            streams = [theirs, out.fileno(), err.fileno()]
            code = WARM.start("-c", QUICK, *arguments, streams=streams, environment=environment).wait(110)
    finally:
        os.close(theirs)
        reader.join()
    out, err = ((folder / name).read_text() for name in ("out", "err"))
    assert code == 0, err
    return out, err, seen.decode()


@pytest.mark.processes
def test_without_a_terminal_a_line_every_few_seconds_goes_to_the_errors(twice):
    out, err, _ = twice
    assert sorted(line for line in out.splitlines() if "did step" in line) == sorted(
        f"[{rank}] did step {step}" for rank in range(4) for step in range(30)
    )
    lines = [line for line in err.splitlines() if not re.fullmatch(r"\[\d\] oddly \d+", line)]
    assert len(err.splitlines()) - len(lines) == 120, "the script's own lines are whole"
    assert all(line.startswith("partreduce: 4 workers after ") for line in lines), err
    assert lines[-1].endswith("all have ended")
    steps = [int(found[1]) for line in lines if (found := re.search(r": steps? (\d+)", line))]
    assert steps == sorted(steps)
    silent = [line for line in lines if re.search(r"worker 1 .*gave no sign of life for [2-9] s", line)]
    assert silent, err
    assert "step 10" in silent[0] or "steps 10" in silent[0], "nobody is far ahead of the one that stands still"


def emulated(text):
    """The lines of a terminal that knows the few sequences that are used."""
    lines, row, column = [""], 0, 0
    for found in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)", text):
        if found[2] == "F":
            row, column = row - int(found[1]), 0
        elif found[2] == "J":
            lines[row] = lines[row][:column]
            del lines[row + 1 :]
        elif found[3]:
            column = 0
        elif found[4]:
            row += 1
            lines += [""] * (row == len(lines))
        elif found[5]:
            lines[row] = lines[row][:column].ljust(column) + found[5] + lines[row][column + len(found[5]) :]
            column += len(found[5])
    return lines


@pytest.mark.processes
def test_on_a_terminal_a_table_stands_below_what_the_script_prints(twice):
    text = twice[2]
    lines = [line.rstrip() for line in emulated(text)]
    printed = [line for line in lines if line.startswith("[")]
    wanted = [f"[{r}] {what} {s}" for r in range(4) for s in range(30) for what in ("did step", "oddly")]
    assert sorted(printed) == sorted([*wanted, "[1] pauses"]), "each line is there, once and whole"
    table = lines[len(printed) :]
    assert sum("steps/s" in line for line in lines) == 1, "the table is drawn in place of the one before"
    assert any("4 workers after" in line and "1 not shown" in line for line in table), table
    assert len(table) <= 8
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"1 +10 .*, and gave no", plain), "the worker that stands still is among those that are shown"
    assert "has ended" in "\n".join(table)


def test_a_stream_that_is_no_terminal_is_left_alone_while_a_table_stands_on_the_other(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(screen, "DRAW_SECONDS", 0.0)
    shown = screen.Screen(Picture(PublishedProgress(2)))
    shown.look({0: None, 1: None}, lambda rank: "imports")
    drawn = terminal.getvalue()
    shown.write("[0] result\n", errors=False)
    assert pipe.getvalue() == "[0] result\n"
    assert terminal.getvalue() == drawn
    shown.write("[0] \x1b[31moops\x1b[0m\n", errors=True)
    assert terminal.getvalue().endswith("\x1b[J[0] \x1b[31moops\x1b[0m\n")


def test_the_gaps_of_a_schedule_are_bounded_by_what_is_proved():
    ring = Round.from_edges(4, [(i, (i + 1) % 4, Fraction(1, 2)) for i in range(4)])
    strategy = Neighbor(rounds=(ring,), when=Gap(max_ig=2))
    gaps = gaps_of(Schedule("ring", Cluster.regular(1, 4), strategy))
    gaps.add([2, 0, 0, 1], [2, 0, 0, 1])
    assert [str(gap) for gap in gaps.now] == ["2/2", "2/2", "1/1", "1/1"]
    assert gaps_of(Schedule("ring", Cluster.regular(1, 4), Neighbor(rounds=(ring,)))) is None


def test_no_gap_is_seen_between_one_that_went_back_to_a_checkpoint_and_one_that_will(own_slot):
    published = PublishedProgress(2)
    gaps = Gaps([[1], [0]], ((0, 1), (1, 0)))
    for generation, steps in ((0, (500, 501)), (1, (0, None)), (1, (0, 1))):
        for rank, step in enumerate(steps):
            if step is not None:
                published.claim(rank)
                own_slot.own.enter(step, generation)
        gaps.add(published.places(), published.places())
        assert gaps.now[0] is None or gaps.now[0].steps == 1
        assert published.steps() == [steps[0], steps[1] or 501]
    assert gaps.largest[0].steps == 1


def test_what_a_worker_said_many_steps_ago_is_not_what_it_does(own_slot, monkeypatch):
    monkeypatch.setattr(progress_publisher, "PUBLISH_SECONDS", 0.01)
    published = PublishedProgress(1)
    published.claim(0)
    progress, heartbeat = Progress(), SimpleNamespace(last=("entered the initial broadcast", (1,)))
    run = SimpleNamespace(progress=progress, pace=1, reducer=SimpleNamespace(heartbeat=heartbeat))
    runner = SimpleNamespace(status=lambda: None, rests=False)
    ending = SimpleNamespace(is_running=True, state="finished")
    progress_publisher.publish(run, runner, ending)

    def said(text):
        deadline = time.monotonic() + 60
        while (report := published.report(0)) is None or report.doing != text:
            assert time.monotonic() < deadline, report
            time.sleep(0.005)
        return report.waits

    assert said("entered the initial broadcast") == (1,)
    progress.enter(3)
    assert said("computes step 3") == ()
    heartbeat.last = ("entered the average of round 3", (1, 2))
    assert said("entered the average of round 3") == (1, 2)
    runner.rests = True
    assert said(progress_publisher.RESTS) == ()
    assert published.report(0).rests
    ending.is_running = False
    said("is finished")
