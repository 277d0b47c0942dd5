"""Messages of the command line: progress, misplaced files, hints, and the verdict."""

import json
from dataclasses import replace

import pytest

from helpers.command_runs import ran
from partreduce import Cluster, Schedule, load_schedule, write_schedule
from partreduce.__main__ import main
from partreduce.planner.plan import Answer
from partreduce.report.kinds import not_reached
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Status
from partreduce.strategies import DynamicGroups, GroupPhases, Pairwise, PartialAllReduce, Phase, Server, StaticGroups
from partreduce.topo.strategies import AllReduce
from partreduce.verify import prove

CLUSTER = "num_nodes: 2\nworkers_per_node: 2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize(("command", "text", "hint"), [
    ("verify cluster.yaml", CLUSTER, "it looks like a cluster file; partreduce design cluster.yaml -o schedule.json"),
    ("verify train.py", "import torch\n", "it looks like a script; partreduce verify train.py:NAME --cluster"),
    ("verify schedule.json", "{", "ends too early; the file may be cut off"),
    ("design train.py", "width: int = 3\nmodel: dict = {width: 3}: 4\n",
        "it looks like a script; partreduce design CLUSTER --model train.py:NAME reads its model\n"),
])  # fmt: skip
def test_misplaced_file_is_recognized(folder, capsys, command, text, hint):
    (folder / command.split()[1]).write_text(text)
    output = ran(capsys, command.split(), 65).err
    assert output.count("\n") == 1
    assert hint in output


@pytest.mark.parametrize(("arguments", "code", "text"), [
    ("run --workers 2 schedule.json", 65, "a schedule goes before the script: --schedule schedule.json SCRIPT"),
    ("run --rdzv-backend c10d --workers 2 train.py", 2, "--rdzv-backend is no option of run"),
    ("measure --workers 2 --model-bytes 0B", 2, "--model-bytes 0B: nothing would be moved; write the size"),
    ("measure --workers 2 -o none/c.yaml", 74, "none/c.yaml: cannot be written: there is no folder"),
    ("design 2x2 -o .", 74, ".: cannot be written: Is a directory"),
    ("simulate schedule.json --trace empty", 65, "empty: holds no step times; write a row for each step"),
    ("design 2x2 --set compute=1e300s", 2, "'1e300s' is too large or too small for a time; write it such as"),
    ("design 2x2 --build allreduce(every=4", 2, "'allreduce(every=4' does not end with a closing parenthesis; write"),
    ("design 2x2 --build allreduce(every=1e30)", 2, "every: '1e30' is not a whole number of at most 18 digits"),
    ("report missing --loss nan", 2, "Invalid value for --loss: expected a finite number, got nan"),
    ("design 2x2 --set nic=-5GB/s", 2, "'-5GB/s' is negative; write a positive number such as"),
])  # fmt: skip
def test_error_comes_before_any_work_in_one_line(folder, capsys, arguments, code, text):
    """Regression: some were tracebacks, and a missing output folder was found only after minutes of measuring."""
    write_schedule("schedule.json", Schedule("pairs", Cluster.regular(1, 2), Pairwise(active=(0,))))
    (folder / "train.py").write_text("")
    (folder / "empty").write_text("")
    (line,) = ran(capsys, arguments.split(), code).err.splitlines()
    assert text in line


@pytest.mark.usefixtures("brief")
def test_narrow_output_starts_with_the_progress_and_keeps_key_columns(capsys):
    printed = ran(capsys, ["design", "4", "--effort", "0.2", "--all"])
    assert printed.err == ""
    first, second, *rest = printed.out.splitlines()
    assert first == "4 is one node of 4 workers; 4x1 would be 4 nodes of one."
    assert second == "Planning; the search takes 3600 s at most; --time-limit and --effort change it."
    assert not any("Planning" in line for line in rest)
    (header,) = (line.split() for line in rest if line.startswith("schedule "))
    assert {"comm.", "steps", "time"} <= set(header)
    assert any(line.startswith("Too narrow for: ") for line in rest), "80 columns have no room for all"


def test_unscored_candidates_are_counted_with_the_option_to_raise():
    cut = Clock(seconds=1e9, effort=2.0)
    answer = Answer(
        status=Status.FEASIBLE, because="", ended=cut.stopped_by(), effort=2.0, time_limit=1e9, capped=False
    )
    assert not_reached({"the catalogue": [], "quorums": []}, answer) == []
    (text,) = not_reached({"the catalogue": ["ring"]}, answer)
    ended = "planning ended because its effort of 2 was used up"
    assert text == f"{ended} with 1 schedule unscored (1 of the catalogue); raise --effort"
    cut.capped = True
    answer = replace(answer, ended=cut.stopped_by(), capped=True)
    ended = "planning ended because its time limit of 1e+09 s cut its effort of 2 short"
    assert not_reached({}, answer) == [f"{ended}, and another run may differ; raise --time-limit"]
    (text,) = not_reached({"the catalogue": ["ring", "star"], "pairs": ["AD-PSGD"]}, answer)
    left = "3 schedules unscored (2 of the catalogue, 1 of pairs)"
    assert text == f"{ended} with {left}, and another run may differ; raise --time-limit"


SLOW = [
    "design", "1x8", "--model-bytes", "37MB", "--set", "compute=160ms", "--set", "slow=5:3", "--effort", "1",
    "--optimizer", "any", "--explain",
]  # fmt: skip


@pytest.mark.parametrize(("name", "more"), [
    ("pairwise: AD-PSGD", ["--effort", "2"]), ("server: synchronous", []), ("generated: random, groups of 2", []),
    ("paced prague-figure-10", []),
])  # fmt: skip
@pytest.mark.usefixtures("brief")
def test_every_row_of_the_table_can_be_selected_by_name(folder, capsys, name, more):
    text = " ".join(ran(capsys, [*SLOW, *more, "--select", name, "-o", "taken.json"]).out.split())
    assert f"Taken: {name}" in text
    worker_steps = load_schedule("taken.json").worker_steps()
    assert ("write the training loop as `for batch in optimizer.batches(loader)`" in text) == (
        len(set(worker_steps)) > 1
    )
    assert ("worker 5 takes 1, so that no worker waits" in text) == name.startswith("paced ")
    assert main(["verify", "taken.json"]) in {0, 3}, "nothing is refuted"


@pytest.mark.usefixtures("brief")
def test_unknown_selection_suggests_the_nearest_name(capsys):
    (line,) = ran(capsys, [*SLOW, "--select", "paced allreduse"], 2).err.splitlines()
    assert "--select 'paced allreduse': no schedule of this name was weighed; did you mean paced allreduce" in line


@pytest.mark.usefixtures("brief")
def test_design_warns_about_a_worker_whose_updates_are_never_used(capsys):
    name = "exponential gap: skip 3, backup for neighbors of slow workers, serial"
    text = " ".join(ran(capsys, [*SLOW, "--effort", "2.5", "--select", name]).out.split())  # enough for 240 rounds
    assert (
        "worker 5 contributes nothing: this is training with 7 workers, which a cluster without it could do as well"
        in text
    )
    assert "two answers are yours to weigh: leave worker 5 out, or give a smaller batch" in text


def test_verify_summarizes_its_claims(folder, capsys):
    assert main(["design", "2x4", "--build", "node-then-all", "-o", "static.json"]) == 0
    text = " ".join(ran(capsys, ["verify", "static.json"]).out.split())
    assert (
        "PROVED: no conflict, consensus. If the program follows its protocol: no deadlock, all workers hold the same "
        "model every 4 steps. node-then"
    ) in text
    assert " Proved membership consensus contraction ≤ 0 consensus-distance ≤ 0.1876 " in text
    assert " Computed from the file conflict-free doubly-stochastic memory sent-bytes " in text
    assert "Holds if the program follows its protocol deadlock-free staleness end equal-replicas Assumed for " in text
    assert "Assumed for sent-bytes: sums go around one ring in the order of ranks, and small messages" in text
    assert "Metrics" not in text
    assert "Not claimed: how fast a step is, that the loss falls, or where SGD converges to." in text
    write_schedule("pairs.json", Schedule("pairs", Cluster.regular(1, 8), Pairwise(active=(0, 1, 2, 3))))
    first = ran(capsys, ["verify", "pairs.json"]).out.splitlines()[0]
    assert first == "HOLDS IF THE PROGRAM FOLLOWS ITS PROTOCOL: no deadlock, the models are drawn together."
    text = ran(capsys, ["verify", "static.json", "--metrics"]).out.splitlines()
    assert "Metrics, rounded; exact: by a formula, not by sampling" in text
    assert any(line.split() == ["period", "4", "exact"] for line in text)


FOLLOWS = "follows from the rules"


@pytest.mark.parametrize(("strategy", "verdict", "code"), [
    (AllReduce(), "proved", 0),
    (Pairwise(active=(0, 1)), FOLLOWS, 0),
    (Server(), FOLLOWS, 0),
    (AllReduce(sync=PartialAllReduce(quorum=2)), FOLLOWS, 0),
    (DynamicGroups(), "not proved", 3),
    (StaticGroups(phases=GroupPhases((Phase.from_groups(4, [(0, 1), (2, 3)]),))), "refuted", 1),
])  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_verdict_is_equal_in_json_text_and_python(strategy, verdict, code, capsys):
    schedule = Schedule("it", Cluster.regular(1, 4), strategy)
    write_schedule("it.json", schedule)
    assert prove(schedule).verdict == verdict
    assert json.loads(ran(capsys, ["verify", "it.json", "--json"], code).out)["verdict"] == verdict
    assert main(["verify", "it.json"]) == code
    words = "HOLDS IF THE PROGRAM FOLLOWS ITS PROTOCOL" if verdict == FOLLOWS else verdict.upper()
    assert capsys.readouterr().out.startswith(f"{words}: ")
