"""What a launcher shows: one mistake of all workers is one line, and everything else is passed on as it comes."""

import io
import sys

import pytest

from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.launcher.log_multiplexer import ErrorDeduplicator, LogMultiplexer

MISTAKE = "InputError: schedule 'x': is for 3 workers"


def shown(said, num_workers):
    output = io.StringIO()
    alike = ErrorDeduplicator(LogMultiplexer(output), num_workers)
    passed = [not alike.hold(rank, line) for rank, line in said]
    alike.show()
    early = output.getvalue()
    alike.show(everything=True)
    return passed, early, output.getvalue()


def test_what_all_workers_tell_is_shown_at_once_and_once():
    assert shown([(rank, MISTAKE) for rank in (2, 0, 1)], 3) == (
        [False] * 3,
        f"[0-2] {MISTAKE}\n",
        f"[0-2] {MISTAKE}\n",
    )


@pytest.mark.parametrize(("ranks", "words"), [((5,), "5"), ((1, 0, 4, 6, 7, 5), "0-1,4-7"), ((3, 3, 1), "1,3")])
def test_what_some_tell_names_them_when_it_has_waited(ranks, words):
    passed, early, late = shown([(rank, MISTAKE) for rank in ranks], 9)
    assert (any(passed), early, late) == (False, "", f"[{words}] {MISTAKE}\n")


def test_two_mistakes_stay_two_and_other_lines_are_not_held():
    other = MISTAKE.replace("3", "4")
    passed, _, late = shown([(0, MISTAKE), (1, other), (1, "PeerFailedError: x"), (0, "  InputError: indented")], 2)
    assert passed == [False, False, True, True]
    assert late == f"[0] {MISTAKE}\n[1] {other}\n"


@pytest.mark.processes
def test_a_launcher_shows_one_mistake_once():
    def mistaken():
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        sys.stderr.write(f"{MISTAKE}\n")
        raise SystemExit(65)

    output = io.StringIO()
    assert launch(mistaken, num_workers=3, output=output) == 65
    lines = output.getvalue().splitlines()
    assert sorted(line for line in lines if "begun" in line) == [f"[{rank}] begun" for rank in range(3)]
    told = [line.removesuffix(f" {MISTAKE}").strip("[]") for line in lines if "InputError" in line]
    ranks = [range(int(part[0]), int(part[-1]) + 1) for words in told for part in words.split(",")]
    assert sorted(rank for part in ranks for rank in part) == [0, 1, 2], (
        "each worker in one line, all in one if in time"
    )
