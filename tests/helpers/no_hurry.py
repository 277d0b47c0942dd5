"""A planner without a tight time limit, so that results do not depend on the machine's load."""

import pytest

from partreduce.planner import job


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    monkeypatch.setattr(job, "LEAST_CAP", 3600.0)
