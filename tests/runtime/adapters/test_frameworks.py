"""ScheduleCallback and ScheduleStrategy inside the real frameworks, if installed, compared with a manual loop."""

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SCENARIOS = "helpers.framework_runs"


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_framework_trains_evaluates_and_saves_as_a_manual_loop(library, request):
    pytest.importorskip(library, reason=f"{library} is not installed")
    answer = request.getfixturevalue("driver").run(library, limit=280)
    assert answer["code"] == 0, answer["output"][-3000:]
    reports = answer["reports"]
    assert len(reports) == 4
    for one in reports:
        by_hand = one["by_hand"]
        assert one["end"] == pytest.approx(by_hand["end"], abs=1e-6)
        assert by_hand["own"] != pytest.approx(by_hand["mean"], abs=1e-4), "so that the two can be distinguished"
        assert one.get("seen", by_hand["mean"]) == pytest.approx(by_hand["mean"], abs=1e-6)
        assert "clips each worker's own gradient" in one["clipped"]
        assert "different numbers of steps" in one["unequal"]
        assert "2 optimizers" in one.get("several", "2 optimizers")
    saved = next(one["saved"] for one in reports if one["rank"] == 0)
    assert saved == pytest.approx(reports[0]["by_hand"]["mean"], abs=1e-6)
