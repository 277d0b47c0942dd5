"""`partreduce report`: metrics of handmade traces and of real workers, and the verdict."""

import json
from dataclasses import replace

import pytest
import torch

from helpers.command_runs import ran
from helpers.thread_ranks import ThreadRanks
from partreduce import Cluster, DistributedOptimizer, Schedule, merge_traces
from partreduce.__main__ import main
from partreduce.errors import FileError
from partreduce.report.traces import read_run, verdict, with_worker_counts
from partreduce.strategies import AllReduce, GroupPhases, Phase, StaticGroups, Transport
from partreduce.topo.hardware import Hardware
from partreduce.topo.timing.cost import communication


def trace(folder, schedule, *, step, slow=0.0, losses=(), steps=5):
    """Write traces of two workers on two nodes: `step` s per step, 0.1 s per all-reduce, worker 1 `slow` s later."""
    folder.mkdir()
    for rank in range(2):
        events = []
        for number in range(steps):
            end = 1e6 * (100 + number * step + 0.1)
            start = end - 1e5 - (1e6 * slow if rank == 0 else 0)
            about = {"round": number, "step": number, "bytes": 1000, "outcome": "ok"}
            where = {"name": "average {0,1}", "cat": "communication", "ph": "X", "pid": rank, "tid": 1}
            events.append(where | {"ts": start, "dur": end - start, "args": about})
        for number, loss in enumerate(losses):
            noted = {"name": "log", "cat": "log", "ph": "C", "ts": 1e6 * (100 + number * step), "pid": rank, "tid": 1}
            events.append(noted | {"args": {"loss": loss + rank}})
        run = {"schedule": schedule, "words": f"what {schedule} does", "node_of": [0, 1]}
        about = {"droppedEvents": 0, "run": run}
        (folder / f"trace-{rank:05d}.json").write_text(json.dumps({"traceEvents": events, "otherData": about}))
    return folder


def test_handmade_trace_gives_seconds_waiting_bytes_and_losses(tmp_path):
    run = read_run(trace(tmp_path / "a", "plain", step=1.0, slow=0.4, losses=[3.0, 1.0]))
    assert (run.schedule, run.num_workers, run.steps) == ("plain", 2, 4)
    assert run.step_seconds == pytest.approx(1.0)
    assert run.operation_seconds == pytest.approx((0.5 + 0.1) / 2)
    assert run.waiting_seconds == pytest.approx(0.4 / 2), "worker 0 waits for worker 1"
    assert run.nic_bytes == pytest.approx(2 * 1000), "each of two nodes sends a full model in a ring of two"
    assert [value for _, value in run.losses] == pytest.approx([3.5, 1.5]), "the mean over workers"
    assert run.seconds_to(1.5) == pytest.approx(1.4)
    assert run.seconds_to(1.0) is None


def test_verdict_is_a_range_over_pairs_of_runs_or_undecided(tmp_path):
    base = [read_run(trace(tmp_path / f"a{k}", "A", step=step)) for k, step in enumerate((1.0, 1.1))]
    fast = [read_run(trace(tmp_path / f"b{k}", "B", step=step)) for k, step in enumerate((0.5, 0.66))]
    near = [read_run(trace(tmp_path / "c", "C", step=1.05))]
    assert verdict(base[:1], fast[:1], None).endswith("one run each shows no spread: repeat them")
    assert verdict(base, fast, None) == (
        "B takes 0.45 to 0.66 of A's seconds a step, sends 1.00 of its bytes: B is faster"
    )
    assert verdict(base, near, None).endswith("0.95 to 1.05 of A's seconds a step, sends 1.00 of its bytes: the runs "
                                              "decide nothing: repeat them")  # fmt: skip


def test_verdict_counts_runs_that_miss_the_loss(tmp_path):
    base = [read_run(trace(tmp_path / "a", "A", step=1.0, losses=[3.0, 1.0]))]
    other = [read_run(trace(tmp_path / "b", "B", step=0.5, losses=[3.0, 2.0]))]
    text = verdict(base, other, 1.5)
    assert text.endswith("reached a loss of 1.5 in 0 of 1 of its runs, A in 1 of 1: only A reached it"), "not faster"
    assert verdict(other, base, 1.5).endswith(": only A reached it")
    assert verdict(base, other, 0.5).endswith("the runs decide nothing: repeat them")


def test_schedules_are_distinguished_by_worker_count(tmp_path):
    three = [read_run(trace(tmp_path / name, "A", step=1.0)) for name in ("a1", "a2", "b")]
    three[2] = replace(three[2], num_workers=8)
    assert [run.schedule for run in with_worker_counts(three)] == [f"A of {three[0].num_workers}"] * 2 + ["A of 8"]
    assert with_worker_counts(three[:2]) == three[:2]


def test_runs_of_one_schedule_are_repeats(tmp_path, capsys):
    folders = [trace(tmp_path / n, n[0], step=s, losses=[2.0, 1.0]) for n, s in (("A1", 1.0), ("A2", 1.2), ("B1", 0.6))]
    document = json.loads(ran(capsys, ["report", *map(str, folders), "--json"]).out)
    assert [run["schedule"] for run in document["runs"]] == ["A", "A", "B"]
    assert document["loss"] == pytest.approx(1.5)
    (line,) = document["verdicts"]
    assert line.startswith("B takes 0.50 to 0.60 of A's seconds a step")
    lines = ran(capsys, ["report", *map(str, folders)]).out.splitlines()
    assert [lines.count(f"{name}: what {name} does") for name in "AB"] == [1, 1]
    assert main(["report", str(folders[0]), "--loss", "1.5"]) == 0
    assert "name a run of another one, too, for a verdict" in capsys.readouterr().out


def test_report_says_how_to_log_a_loss_if_a_run_has_none(tmp_path, capsys):
    with_losses = trace(tmp_path / "a", "A", step=1.0, losses=[2.0, 1.0])
    without = trace(tmp_path / "b", "B", step=1.0)
    advice = "Not every run logged a loss: call optimizer.log(loss=…)"
    assert advice in ran(capsys, ["report", str(with_losses), str(without)]).out
    assert advice not in ran(capsys, ["report", str(with_losses)]).out


@pytest.mark.parametrize(("text", "words"), [(None, "holds no trace-RANK.json"), ("{}", "is not a trace of this")])
def test_folder_without_traces_is_a_one_line_error(tmp_path, capsys, text, words):
    if text is not None:
        (tmp_path / "trace-00000.json").write_text(text)
    (line,) = ran(capsys, ["report", str(tmp_path)], 74).err.splitlines()
    assert words in line


def test_report_reads_traces_of_real_workers(tmp_path):
    """Pairs average inside nodes, so the distance at mean_model() is that of two unequal pairs."""
    phases = GroupPhases((Phase.from_groups(4, [(0, 1), (2, 3)]), Phase.from_groups(4, [range(4)])))
    plan = Schedule("pairs", Cluster.regular(2, 2), StaticGroups(phases=phases))

    def work(world):
        model = torch.nn.Linear(1, 1, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, world=world, trace=tmp_path)
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 1)).sum() * (1.0 if world.rank < 2 else 3.0)
            loss.backward()
            optimizer.step()
            optimizer.log(loss=float(step))
        with optimizer.mean_model():
            pass
        optimizer.finish()

    ThreadRanks(4).run(4, work)
    run = read_run(tmp_path)
    assert (run.schedule, run.num_workers, run.steps) == ("pairs", 4, 4)
    assert [value for _, value in run.losses] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert run.consensus_distance == pytest.approx(1.0), "after step 5 pairs are at -1 and -3 from the last mean"
    assert 0 <= run.waiting_seconds <= run.operation_seconds
    assert run.step_seconds > 0
    assert run.nic_bytes > 0


@pytest.mark.parametrize("transport", [
    Transport(), Transport(algorithm="hierarchical"), Transport(codec="float16"), Transport(codec="int8"),
    Transport(algorithm="hierarchical", codec="int8", where="across-nodes"),
], ids=str)  # fmt: skip
def test_bytes_across_nodes_follow_algorithm_and_codec(tmp_path, transport):
    """As the timing model says for the same schedule; the two nodes are equal, so all bytes are twice the busiest's."""
    plan = Schedule("all", Cluster.regular(2, 2), AllReduce(steps_per_round=2, transport=transport))

    def work(world):
        model = torch.nn.Linear(1024, 4, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, world=world, trace=tmp_path)
        for _ in range(9):
            model(torch.ones(1, 1024)).sum().backward()
            optimizer.step()
        optimizer.finish()

    ThreadRanks(4).run(4, work)
    expected = communication(plan, Hardware(model_bytes=4 * 4096)).nic_bytes_per_step
    assert read_run(tmp_path).nic_bytes == pytest.approx(2 * expected, rel=0.02)


def test_log_without_a_trace_records_nothing():
    def work(world):
        model = torch.nn.Linear(1, 1)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        plan = Schedule("all", Cluster.regular(1, 2), AllReduce())
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, world=world)
        optimizer.log(loss=1.0)
        noted = list(optimizer.run.reducer.recorder._events)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.finish()
        return noted

    assert ThreadRanks(2).run(2, work) == [[], []]


OPERATION = {"name": "average {0,1}", "cat": "communication", "ph": "X", "ts": 1.0, "dur": 1.0, "pid": 0, "args": {}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"traceEvents": [], "otherData": {}}, "took no two steps"),
        ({"traceEvents": [OPERATION], "otherData": {}}, "is not a trace of this program ('round')"),
        ({"traceEvents": [], "otherData": {"run": {"schedule": "s"}}}, "is not a trace of this program ('node_of')"),
        (
            {"traceEvents": [], "otherData": {"run": {"node_of": [0, 1], "transport": {"codec": "gzip"}}}},
            "is not a trace of this program (transport.codec: is 'gzip'",
        ),
        ([], "is not a trace of this program"),
    ],
)
def test_trace_of_another_program_is_a_one_line_error(tmp_path, capsys, content, words):
    (tmp_path / "trace-00000.json").write_text(json.dumps(content))
    (line,) = ran(capsys, ["report", str(tmp_path)], 74).err.splitlines()
    assert words in line


@pytest.mark.parametrize("content", [[], {"traceEvents": [5]}])
def test_merge_of_another_programs_trace_is_a_file_error(tmp_path, content):
    (tmp_path / "trace-00000.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="is not a trace of this program"):
        merge_traces(tmp_path)
