"""Models sharded by fully_shard, whose replicas are a schedule's workers (helpers/sharded_runs.py)."""

import re
from operator import itemgetter

import pytest

from helpers.children import ROOT
from helpers.conformance.kinds import KINDS
from helpers.conformance.variants import REFUSED
from helpers.warm import WARM
from partreduce import design, write_schedule

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SCENARIOS = "helpers.sharded_runs"
RANK = itemgetter("rank")


def run_scenario(driver, name, **environment):
    answer = driver.run(name, limit=250, environment=environment)
    assert answer["code"] == 0, answer["output"][-3000:]
    return answer["reports"]


def assert_equal_runs(reports):
    """Sharded and whole models differ by rounding only, from the order of summation."""
    whole = {report["rank"]: {name: pair[1] for name, pair in report["found"].items()} for report in reports}
    for report in reports:
        for name, ((losses, numbers), _) in report["found"].items():
            expected_losses, expected_numbers = whole[report["replica"]][name]
            assert losses == pytest.approx(expected_losses, abs=2e-6), name
            assert numbers == pytest.approx(expected_numbers, abs=2e-6), name


@pytest.mark.parametrize("mesh", ["2x4", "4x2"])
def test_sharded_replicas_have_the_losses_of_whole_workers(driver, mesh):
    reports = run_scenario(driver, "same losses", MESH=mesh)
    assert len(reports) == 8
    assert_equal_runs(reports)


def test_training_features_are_equal_for_sharded_and_whole_models(driver):
    reports = run_scenario(driver, "features")
    assert_equal_runs(reports)
    for report in reports:
        (losses, numbers), (expected_losses, expected_numbers) = report["mixed"]
        assert losses == pytest.approx(expected_losses, abs=0.02)
        assert numbers == pytest.approx(expected_numbers, abs=0.01)


@pytest.mark.parametrize("mesh", ["2x1x2", "2x2x2"])
def test_replicas_sharded_by_tensor_parallelism_equal_whole_workers(driver, mesh):
    reports = run_scenario(driver, f"tensor parallel, {4 if mesh == '2x1x2' else 8}", MESH=mesh)
    assert_equal_runs(reports)
    if mesh == "2x2x2":
        assert all("and a checkpoint is written over one" in report["message"] for report in reports)


def test_no_delay_changes_a_bit_of_sharded_runs(driver):
    for report in run_scenario(driver, "delays"):
        for name, runs in report["found"].items():
            for places, count, same in runs:
                assert same, (name, places)
                assert count, (name, places)


def test_unsupported_uses_of_sharded_models_raise_one_line_errors(driver):
    words = {
        **{kind: f"{why} ({KINDS[kind].strategy.protocol})" for kind, why in REFUSED["sharded"].items()},
        "no mesh": "'0.weight' is sharded (DTensor over dp_shard); say along which dimension",
        "all dimensions": "mesh: has 2 dimensions (dp_replicate, dp_shard); pass the one",
        "the other dimension": "too (over dp_shard), which is of another replica by mesh=",
        "no mesh at all": "mesh: is a str; pass",
        "world and mesh": "leave one of the two out",
        "HSDP": "too (over dp_replicate × dp_shard), which is of another replica by mesh=",
        "whole": "mesh: has 2 of 4 ranks, and no parameter of the model is sharded",
        "other number": "'conformance': is for 4 workers and this run has 2",
        "converted": "the shards of parameter '0.weight' are of type Eight",
        "meta": "'0.weight' is on the meta device",
        "offloaded": "offload_policy",
        "scaler": "take bfloat16",
        "skip": "skips the step on this rank alone",
        "checkpoint": "save_checkpoint: extra and optimizer settings must be JSON",
    }
    for report in run_scenario(driver, "refusals"):
        assert report["messages"].keys() == words.keys()
        for name, message in report["messages"].items():
            assert words[name] in message
            assert "\n" not in message


def test_sharded_checkpoint_resumes_with_equal_or_fewer_shards(driver, tmp_path):
    whole, again = (run_scenario(driver, "checkpoints, 4", MESH="2x2", DIRECTORY=str(tmp_path)) for _ in range(2))
    assert len(list(tmp_path.glob("*/round-*"))) == 4, "keep=1"
    for one, other in zip(sorted(whole, key=RANK), sorted(again, key=RANK), strict=True):
        for name, (losses, numbers, _) in one["found"].items():
            assert [losses, numbers, {"own": one["rank"]}] == other["found"][name], name
    for report in run_scenario(driver, "checkpoints, 2", MESH="2x1", DIRECTORY=str(tmp_path)):
        assert "strategy/flight/0/sums/0 of another number of shards" in report["found"].pop("allreduce, pipeline")
        del report["found"]["static"]  # each rank had its own random numbers
        assert len(report["found"]) == 2
        for name, (_, numbers, extra) in report["found"].items():
            assert extra is None
            assert numbers == pytest.approx(whole[0]["found"][name][1], abs=2e-6), name
    for folder in tmp_path.glob("*/round-*/replica-00001"):  # an incomplete, a truncated and an unreadable checkpoint
        kind = folder.parts[-3]
        if kind == "static, late":
            (folder / ".metadata").unlink()
        else:
            for path in folder.glob("*.distcp" if kind == "static" else ".metadata"):
                path.write_bytes(path.read_bytes()[:300])
    words = {
        "static, late": (
            "of no checkpoint there all replicas can read their parts",
            "/replica-00001 is lost or incomplete",
        ),
        "static": ("replica-00001: cannot be read: EOFError",),
        "allreduce, outer": ("replica-00001: cannot be read: ",),
    }
    for report in run_scenario(driver, "checkpoints, 4", MESH="2x2", DIRECTORY=str(tmp_path), KINDS=";".join(words)):
        for name, message in report["found"].items():
            assert all(part in message for part in words[name]), name
            assert "\n" not in message


def test_killed_rank_ends_all_replicas_and_is_named(driver):
    answer = driver.run("killed", limit=60)
    assert answer["code"] == 128 + 9
    assert "worker 3 was killed by signal 9 (SIGKILL)" in answer["output"]
    named = "worker 1 (its rank 3) was killed by signal 9"
    assert all(named in error["text"] for error in answer["errors"].values()), answer["output"]
    assert 1 in answer["errors"], answer["output"]
    assert (
        "PeerFailedError: rank 3 was killed by signal 9 (SIGKILL); without it torch's own collectives fail"
        in answer["output"]
    )
    assert "Traceback" not in answer["output"]


def test_documented_script_trains_and_differs_from_hsdp_by_the_diff(tmp_path):
    page = (ROOT / "docs/how-to/sharded-models.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    script = (ROOT / "examples/train_sharded.py").read_text(encoding="utf-8")
    before = script
    for part in diff.split("\n\n"):
        lines = part.splitlines()
        new = "\n".join(line[1:] for line in lines if line[0] in "+ ")
        assert new in script
        before = before.replace(new, "\n".join(line[1:] for line in lines if line[0] in "- "))
    assert "partreduce" not in before.split('"""', 2)[2]
    write_schedule(tmp_path / "schedule.json", design("1x2", build="local-sgd", every=4))
    losses = []
    for name, text in (("theirs.py", before), ("ours.py", script)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = WARM.run("partreduce", "run", "--workers", "4", tmp_path / name, tmp_path / "schedule.json", timeout=250)
        assert done.returncode == 0, done.stderr
        losses.append(float(re.search(r"loss of the mean model ([\d.]+)", done.stdout)[1]))
    assert losses[1] < 0.05
    assert losses[1] < losses[0] + 0.02
