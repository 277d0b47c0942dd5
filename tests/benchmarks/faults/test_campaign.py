"""How many cells a campaign runs side by side."""

import pytest

from benchmarks.faults import campaign
from benchmarks.faults.cell import Cell, Outcome


@pytest.mark.parametrize(("is_idle", "most"), [(False, campaign.AT_LEAST), (True, 4)])
def test_more_cells_than_two_run_at_once_only_while_a_processor_is_idle(monkeypatch, is_idle, most):
    """And never more than asked for."""
    running, counts, seen = set(), [], []

    def cell(asked, number):
        assert number not in running, "networks are named after it"
        running.add(number)
        for _ in range(5):
            counts.append(len(running))
            yield None
        running.remove(number)
        yield Outcome(asked)

    monkeypatch.setattr(campaign, "_cell", cell)
    monkeypatch.setattr(campaign, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(campaign.Idle, "now", lambda _: is_idle)
    asked = [Cell("static", "kill worker", "run", seed) for seed in range(9)]
    campaign.run_cells(iter(asked), seen.append, at_once=4)
    assert max(counts) == most
    assert sorted(outcome.cell.seed for outcome in seen) == list(range(9))


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, False), (1e6, True)])
def test_a_processor_was_idle_if_the_machine_counts_its_idle_seconds_on(monkeypatch, seconds, expected):
    monkeypatch.setattr(campaign, "ASK_SECONDS", 0.0)
    idle = campaign.Idle()
    monkeypatch.setattr(idle, "_seconds", lambda: idle._spent + seconds)
    assert idle.now() is expected
