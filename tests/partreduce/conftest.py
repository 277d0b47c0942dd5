"""Nothing here depends on how busy the machine is; what many tests of a file decide is decided once."""

from dataclasses import replace

import pytest

from helpers.no_hurry import brief, no_hurry  # noqa: F401 - fixtures
from partreduce.__main__ import main
from partreduce.planner import job, plan
from partreduce.report import recommendation


@pytest.fixture(scope="module")
def figure_10(tmp_path_factory):
    path = tmp_path_factory.mktemp("schedules") / "figure10.json"
    assert main(["design", "4x4", "--build", "prague-figure-10", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def decisions():
    return {}


@pytest.fixture
def decide_once(monkeypatch, decisions):
    """Within a file equal jobs are decided once, such as for `design` as text and as JSON, and for other optimizers."""
    decide = plan.decide

    def known(asked, *say):
        quick = job.EFFORTS["quick"]
        effort = quick if asked.effort is None and asked.time_limit is None else asked.effort
        key = replace(asked, effort=effort), quick
        if key not in decisions:
            decisions[key] = decide(asked, *say)
        return decisions[key]

    for module in (plan, recommendation):
        monkeypatch.setattr(module, "decide", known)
