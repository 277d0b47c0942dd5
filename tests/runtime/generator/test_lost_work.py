"""Processes: checkpoints and uneven inputs under the group generator, with lost workers; full trace disks."""

import contextlib
import json

import pytest

from helpers.generator_rig import FOUR_ON_ONE_NODE, serving

pytestmark = pytest.mark.processes
pytest.importorskip("zmq")
pytest.importorskip("safetensors")


SCENARIOS = "helpers.lost_work"


@pytest.fixture
def serve():
    """Start a group generator for four workers on one node; return the environment of its workers."""
    with contextlib.ExitStack() as stack:
        yield lambda lease=20.0: stack.enter_context(serving(FOUR_ON_ONE_NODE, lease=lease))[1]


def last_reports(answer, *ranks):
    """The last reports of the given ranks, which are exactly the workers that succeeded."""
    good = {r["rank"]: r for r in answer["reports"] if "error" not in r}
    assert set(good) == set(ranks), answer["output"][-2000:]
    assert answer["code"] == 0, answer["output"][-2000:]
    return [good[rank] for rank in ranks]


@pytest.mark.parametrize("dies", [False, True])
def test_generated_schedules_save_and_resume_after_a_lost_worker(driver, serve, tmp_path, dies):
    name = "saving, one dies" if dies else "saving"
    answer = driver.run(name, environment=serve(3.0 if dies else 20.0) | {"PLACE": str(tmp_path)}, survive=True)
    left = last_reports(answer, *range(3 if dies else 4))
    assert {report["folder"] for report in left} == {"round-00000036"}
    mean = sum(report["saved"] for report in left) / len(left)
    assert all(report["mean"] == pytest.approx(mean, rel=1e-5) for report in left)
    if not dies:
        assert mean == pytest.approx(2.5, rel=1e-5)
    manifest = json.loads((tmp_path / "round-00000036" / "manifest.json").read_text())
    assert [entry is not None for entry in manifest["workers"]] == [True, True, True, not dies]
    again = driver.run("resuming", environment=serve() | {"PLACE": str(tmp_path)}, survive=True)
    resumed = last_reports(again, 0, 1, 2, 3)
    saved = [report["saved"] for report in left]
    saved += saved[:1] if dies else []  # the replacement of the lost worker starts from the first worker's state
    assert [report["restored"] for report in resumed] == saved == [report["again"] for report in resumed]
    assert [report["extra"]["rank"] for report in resumed] == [0, 1, 2, 0 if dies else 3]
    assert {(report["round"], report["steps"]) for report in resumed} == {(36, 39)}


@pytest.mark.parametrize("kind", ["joining", "joining, normalized", "joining, one dies"])
def test_join_of_a_generated_schedule_ends_survivors_at_the_same_round(driver, serve, kind):
    answer = driver.run(kind, environment=serve(3.0 if "dies" in kind else 20.0), survive=True)
    left = last_reports(answer, *range(3 if "dies" in kind else 4))
    (rounds,) = {report["rounds"] for report in left}
    assert rounds == 50 if "dies" not in kind else 40 <= rounds <= 46
    assert all(report["final"] == pytest.approx(left[0]["mean"], rel=1e-5) for report in left)
    if kind == "joining":
        assert left[0]["mean"] == pytest.approx(2.5, rel=1e-5)
    if "dies" not in kind:
        late = [members for seq, members in left[3]["executed"]][-10:]
        assert any(set(members) - {3} for members in late), "workers without data still average"


def test_full_trace_disk_warns_once_and_the_run_succeeds(driver, tmp_path):
    answer = driver.run("full trace disk", environment={"TRACE": str(tmp_path)})
    for report in last_reports(answer, 0, 1, 2, 3):
        (warning,) = report["warnings"]
        assert f"tracing: {tmp_path}/trace-0000{report['rank']}.json: cannot be written: File too large" in warning
        assert report["finished"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"saved-{rank}" for rank in range(4)]
