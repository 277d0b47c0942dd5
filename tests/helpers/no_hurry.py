"""A planner that is not hurried: of its time limit a busy machine takes seconds, and with them options, from a test."""

import pytest

from partreduce.planner import job


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    monkeypatch.setattr(job, "LEAST_CAP", 3600.0)
