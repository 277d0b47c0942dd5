"""ScheduleLocalSGD compared with accelerate's own LocalSGD, with the real library where it is installed."""

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.processes

SCENARIOS = "helpers.accelerate_runs"


def test_local_sgd_equals_accelerate_and_groups_equal_the_averager(driver):
    answer = driver.run("local sgd", limit=110)
    assert answer["code"] == 0, answer["output"][-3000:]
    reports = answer["reports"]
    assert len(reports) == 4
    for report in reports:
        assert report["ours"][1] == pytest.approx(report["theirs"][1], abs=1e-6)
        assert report["grouped"][0] == pytest.approx(report["by_hand"], abs=1e-6)
        mean = [sum(numbers) / 4 for numbers in zip(*(one["grouped"][0] for one in reports), strict=True)]
        assert report["grouped"][1] == pytest.approx(mean, abs=1e-6)
        assert "runs as FSDP, where models are not whole" in report["message"]
    assert len({tuple(report["grouped"][0]) for report in reports}) > 1, "pairs leave workers apart"
    assert reports[0]["off"][0] == pytest.approx(reports[1]["off"][0], abs=1e-6), "DDP averages gradients there"
