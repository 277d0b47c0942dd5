"""A planner without a tight time limit, so that results do not depend on the machine's load; and a briefer one."""

import pytest

from partreduce.planner import job


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    monkeypatch.setattr(job, "LEAST_CAP", 3600.0)


@pytest.fixture
def brief(monkeypatch):
    """Quick answers, and those for other optimizers that `design` prints, with a twentieth of their effort."""
    monkeypatch.setitem(job.EFFORTS, "quick", 0.1)
