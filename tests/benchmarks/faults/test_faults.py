"""A fixed part of the fault campaign: all kinds, and faults whose outcome does not depend on the load.

The campaign measures the detection time, not these tests, which run in parallel. Therefore the timeout is long: a
generator that is restarted has as much time.

Repeat a failed cell with `python -m benchmarks.faults.run --cell NAME`; `make faults` runs random cells.
"""

import json
import subprocess

import pytest

from benchmarks.faults import campaign
from benchmarks.faults.kinds import KINDS
from benchmarks.faults.run import PAGE, RESULTS, page
from benchmarks.faults.running import Cell, Outcome
from helpers import children
from partreduce.topo.document.strategies import KINDS as DOCUMENTS

CELLS = (
    "static/kill parent of children/run/1",
    "allreduce/kill parent of children/by hand/1",
    "static late/exception/run/1",
    "allreduce late/SIGKILL launcher/run/1",
    "allreduce every 2/kill worker/run/1",
    "elastic allreduce/kill worker/run/1",
    "elastic codec/kill two/run/1",
    "elastic outer/kill and join/run/1",
    "outer/kill worker/run/1",
    "outer of pairs/kill worker/run/1",
    "fragments merged late/kill worker/run/1",
    "quorum of three/kill worker/run/1",
    "hierarchical/SIGTERM launcher twice/run/2",
    "neighbor/kill worker/torchrun/1",
    "gap tokens parallel/kill worker/by hand/1",
    "gap skip/kill worker/run/1",
    "dynamic_groups/kill worker/run/1",
    "dynamic_groups/kill generator/run/1",
    "pairwise late/kill worker/run/1",
    "server/kill worker/run/1",
    "gap standard/kill twice, restart/run/1",
    "server asynchronous/full disk for checkpoints/run/1",
    "server asynchronous late/SIGTERM launcher/run/1",
)


@pytest.mark.processes
@pytest.mark.lab
@pytest.mark.timeout(600)
def test_faults_end_in_time_name_the_culprit_and_leave_nothing():
    """On a busy machine a run may end before its fault is due; it is repeated then."""
    possible = {"/".join(combination) for combination in campaign.combinations()}
    remaining = [name for name in CELLS if name.rsplit("/", 1)[0] in possible]
    for _ in range(3):
        messages = verdicts_of(remaining)
        assert set(messages) == set(remaining)
        remaining = [name for name, words in messages.items() if ": not fired (" in words]
        if not remaining:
            break
    assert not remaining


def verdicts_of(cells):
    """Return the verdict of a campaign on each cell; none may be a violation."""
    arguments = [part for name in cells for part in ("--cell", name)]
    done = subprocess.run(
        [*children.module("benchmarks.faults.run"), "--at-once", "2", "--timeout", "20", "--slack", "40", *arguments],
        env=children.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    *_, total = lines = done.stdout.splitlines()
    assert total.endswith(" 0 with a violation"), done.stdout
    return {name: line.removeprefix(f"{name}: ") for name in cells for line in lines if line.startswith(f"{name}: ")}


def test_every_strategy_kind_has_fault_cells():
    assert {kind.strategy.kind for kind in KINDS.values()} == set(DOCUMENTS)


def test_page_matches_the_results():
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_cell_names_round_trip():
    for name in CELLS:
        assert Cell.of_name(name).name == name


@pytest.mark.parametrize(("is_idle", "most"), [(False, campaign.AT_LEAST), (True, 4)])
def test_more_than_two_cells_run_only_on_an_idle_processor(monkeypatch, is_idle, most):
    running, counts, seen = set(), [], []

    def cell(requested, number):
        assert number not in running, "the number of a cell names its network"
        running.add(number)
        for _ in range(5):
            counts.append(len(running))
            yield None
        running.remove(number)
        yield Outcome(requested)

    monkeypatch.setattr(campaign, "_cell", cell)
    monkeypatch.setattr(campaign, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(campaign.Idle, "now", lambda _: is_idle)
    requested = [Cell("static", "kill worker", "run", seed) for seed in range(9)]
    campaign.run_cells(iter(requested), seen.append, at_once=4)
    assert max(counts) == most
    assert sorted(outcome.cell.seed for outcome in seen) == list(range(9))


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, False), (1e6, True)])
def test_processor_is_idle_if_its_idle_seconds_increase(monkeypatch, seconds, expected):
    monkeypatch.setattr(campaign, "ASK_SECONDS", 0.0)
    idle = campaign.Idle()
    monkeypatch.setattr(idle, "_seconds", lambda: idle._spent + seconds)
    assert idle.now() is expected
