"""The command line: JSON output, exit codes, one line for every error, fast help."""

import json
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

import partreduce.verify.prove
from helpers.command_runs import ran
from helpers.small import of_edges, of_groups
from partreduce import Cluster, Hardware, Link, PlanRequest, Schedule, load_schedule, write_schedule
from partreduce.__main__ import main
from partreduce.commands import EXAMPLES, HIDDEN, PANELS, VERBS, build_app
from partreduce.commands.cluster_options import cluster_settings, hardware_defaults
from partreduce.commands.design import limits_of
from partreduce.commands.options import LIMIT_KEYS, SETTING_KEYS
from partreduce.errors import InputError
from partreduce.planner.job import Delay
from partreduce.planner.measuring import measure
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers import registry
from partreduce.schedulers.imports import formats
from partreduce.strategies import Pairwise, PartialAllReduce, Pipeline, Server, Synchronous, Transport
from partreduce.topo.document.schema import schedule_schema
from partreduce.topo.graphs.weights import METHODS
from partreduce.topo.strategies import AllReduce, Codec, DelayedAveraging, DynamicGroups
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.payload import OuterParams, OuterStep, Payload

ROOT = Path(__file__).parents[3]


@pytest.fixture
def conflict(tmp_path):
    path = tmp_path / "conflict.json"
    write_schedule(path, of_groups("conflict", Cluster.regular(1, 4), [(0, 1), (1, 2)]))
    return path


def run_json(capsys, *arguments, code=0):
    """Run a command that prints only JSON."""
    capsys.readouterr()
    captured = ran(capsys, [str(a) for a in arguments], code)
    assert captured.err == ""
    return json.loads(captured.out)


def run_error(capsys, *arguments, code):
    """Run a command that must fail with one line on standard error and no standard output."""
    capsys.readouterr()
    captured = ran(capsys, [str(a) for a in arguments], code)
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("partreduce: ")
    return captured.err


def test_version_is_printed_without_a_verb(capsys):
    assert ran(capsys, ["--version"]).out == f"{partreduce.__version__}\n"


def test_help_lists_verbs_and_hides_internal_commands(capsys):
    lines = ran(capsys, ["--help"]).out.splitlines()
    listed = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != " "]
    verbs = [word for word in listed if not word.startswith("-")]
    assert verbs == ["design", "verify", "show", "simulate", "measure", "import", "run", "report", "demo"]


def test_design_has_at_most_22_options_each_in_a_help_panel():
    parameters = typer.main.get_command(build_app()).commands["design"].params
    options = [parameter for parameter in parameters if parameter.opts[0].startswith("-")]
    assert len([option for option in options if option.name != "help"]) <= 22
    assert [option.name for option in options if option.rich_help_panel is None] == []


def test_every_option_is_documented():
    text = (ROOT / "docs" / "command-line.md").read_text()
    shared = text[text.index("## Quantities") : text.index("## design")]
    commands = typer.main.get_command(build_app()).commands
    for verb in (*VERBS, "schema"):
        start = text.index(f"\n## {verb}\n")
        section = shared + text[start : text.find("\n## ", start + 1)]
        for parameter in commands[verb].params:
            names = [name for name in parameter.opts if name.startswith("-")]
            assert not names or any(name in section for name in names), f"{verb} {names}"


def test_verify_proves_a_designed_schedule(capsys, figure_10, tmp_path):
    certificate = tmp_path / "certificate.json"
    document = run_json(capsys, "verify", figure_10, "--json", "--certificate", certificate)
    assert document["verdict"] == "proved"
    assert {c["status"] for c in document["claims"]} == {"proved", "fact", "follows from the rules"}
    assert {"conflict-free", "consensus", "deadlock-free"} <= {c["claim"] for c in document["claims"]}
    metrics = document["metrics"]
    assert (metrics["period"], metrics["num_workers"], metrics["num_distinct_phases"]) == (4, 16, 3)
    assert metrics["contraction"] == pytest.approx(3**0.5 / 2)
    assert metrics["consensus_distance"] == pytest.approx(8 / 7)
    assert set(metrics["drift"]) == {"worker", "node"}
    assert metrics["hop_gap"] is None, "groups have no hop gap"
    checker = [sys.executable, "-I", str(ROOT / "verify" / "checker"), str(certificate), str(figure_10)]
    assert subprocess.run(checker, capture_output=True, check=False).returncode == 0


def test_conflict_is_refuted_with_a_witness(capsys, conflict):
    document = run_json(capsys, "verify", conflict, "--json", code=1)
    assert document["verdict"] == "refuted"
    refuted = [c for c in document["claims"] if c["status"] == "refuted"]
    assert refuted[0]["claim"] == "conflict-free"
    assert refuted[0]["witness"]["worker"] == 1
    assert main(["verify", str(conflict), "--explain"]) == 1
    assert capsys.readouterr().out.startswith("REFUTED: in phase 0 worker 1 is in group ")


def test_design_adds_failure_plans_to_entries_and_files(capsys, figure_10, tmp_path):
    planned, again, certificate = (tmp_path / name for name in ("planned.json", "again.json", "c.json"))
    assert main(["design", "4x4", "--build", "prague-figure-10", "--tolerate-failures", "1", "-o", str(planned)]) == 0
    requested = ("design", "4x4", "--build", figure_10, "--tolerate-failures", "1", "-o", again, "--json")
    found = run_json(capsys, *requested)
    assert found["failure_plan"]["failures"] == 1
    assert again.read_bytes() == planned.read_bytes()
    claims = {claim["claim"]: claim for claim in run_json(capsys, "verify", str(planned), "--json")["claims"]}
    assert claims["survives"]["status"] == "proved"
    assert main(["verify", str(planned), "--certificate", str(certificate)]) == 0
    checker = [sys.executable, "-I", ROOT / "verify/checker", certificate, planned]
    checked = subprocess.run(checker, capture_output=True, text=True, check=True)
    assert "survives: proved\n" in checked.stdout
    assert main(["design", "2x4", "--build", str(figure_10), "--tolerate-failures", "1"]) == 2
    assert "is for 4x4, and CLUSTER is 2x4" in capsys.readouterr().err


def test_design_prints_the_document_without_an_output_file(capsys, figure_10):
    assert run_json(capsys, "design", "4x4", "--build", "prague-figure-10") == json.loads(figure_10.read_text())


def test_design_json_names_the_file_and_its_hash(capsys, tmp_path):
    path = tmp_path / "s.json"
    arguments = ("design", "2x4", "--build", "node-then-all(node_rounds=3)", "-o", path, "--json")
    facts = run_json(capsys, *arguments)
    assert facts["output"] == str(path)
    assert (facts["num_workers"], facts["period"]) == (8, 4)
    assert len(facts["sha256"]) == 64


def test_verify_a_million_workers(capsys, tmp_path):
    path = tmp_path / "big.json"
    assert main(["design", "250000x4", "--build", "prague-figure-10", "-o", str(path)]) == 0
    document = run_json(capsys, "verify", path, "--json")
    assert document["verdict"] == "proved"
    assert document["metrics"]["num_workers"] == 1_000_000
    assert document["metrics"]["contraction"] == pytest.approx(3**0.5 / 2)


@pytest.mark.parametrize("ending", ["png", "svg", "html", "pdf"])
def test_show_writes_every_picture_format(tmp_path, ending):
    path, schedule = tmp_path / f"picture.{ending}", str(tmp_path / "schedule.json")
    assert main(["design", "2x2", "--build", "node-then-all", "-o", schedule]) == 0
    assert main(["show", schedule, "-o", str(path)]) == 0
    data = path.read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>", "pdf": b"%PDF"}[ending])
    if ending == "html":
        assert b"<script" not in data
        names = rb"http://www\.w3\.org|http://purl\.org|http://creativecommons\.org|https://matplotlib\.org"
        assert b"http" not in re.sub(names, b"", data)


def test_show_prints_a_row_per_worker(capsys, figure_10):
    capsys.readouterr()
    rows = [line.split() for line in ran(capsys, ["show", str(figure_10)]).out.splitlines()]
    assert ["0", "0", "A", "F", "J", "F"] in rows
    assert ["1", "F", "K", "F"] in rows


def test_show_json_counts_omitted_workers(capsys, tmp_path):
    path = tmp_path / "big.json"
    assert main(["design", "1000x4", "--build", "prague-figure-10", "-o", str(path)]) == 0
    document = run_json(capsys, "show", path, "--json")
    assert document["note"] == "Shown: 32 of 4000 workers (nodes 0-3, 500-503 of 1000)"
    assert document["groups"][1][2] == document["groups"][17][2], "opposite nodes are shown together"


def test_show_draws_rounds_of_a_graph(capsys, tmp_path):
    path = tmp_path / "ring.json"
    edges = [(i, (i + 1) % 5, Fraction(1, 2)) for i in range(5)]
    write_schedule(path, of_edges("ring", Cluster.regular(1, 5), edges))
    assert main(["show", str(path), "-o", str(tmp_path / "ring.png")]) == 0
    assert "4: 1/2" in ran(capsys, ["show", str(path)]).out


def test_show_and_verify_explain_why_a_quorum_has_no_metrics(capsys, tmp_path):
    path = tmp_path / "quorum.json"
    sync = PartialAllReduce(quorum="majority")
    write_schedule(path, Schedule("s", Cluster.regular(1, 4), AllReduce(sync=sync)))
    none = "which updates a round averages is decided while the job runs, so no round has a mixing matrix"
    assert run_json(capsys, "show", path, "--json")["note"].startswith(f"Period 1: {none}")
    for ending in ("png", "html"):
        assert main(["show", str(path), "-o", str(tmp_path / f"picture.{ending}")]) == 0
    assert f"No metrics: {none}; " in " ".join(ran(capsys, ["verify", str(path), "--metrics"]).out.split())


def test_show_explains_why_per_worker_outer_params_have_no_metrics(capsys, tmp_path):
    path = tmp_path / "own.json"
    payload = Payload(outer=OuterStep(lr=Fraction(7, 10), outer_params=OuterParams.PER_WORKER))
    write_schedule(path, of_groups("own", Cluster.regular(1, 4), [(0, 1), (2, 3)], [(0, 2), (1, 3)], payload=payload))
    none = "outer steps from each worker's own outer parameters are no mixing matrix of models; the schedule has no"
    assert run_json(capsys, "show", path, "--json")["note"] == f"Period 2: {none} metrics"


def test_simulate_agrees_with_the_steady_state(capsys, figure_10):
    options = ("--set", "compute=50ms", "--set", "slow=3:5x", "--model-bytes", "552MB")
    document = run_json(capsys, "simulate", figure_10, "--json", *options)
    assert document["seconds_per_step"] == pytest.approx(document["steady_seconds_per_step"], rel=0.02)
    assert len(document["workers"]) == 16
    assert document["workers"][3]["computing_seconds"] == pytest.approx(25.0)
    shares = [document[f"share_{word}"] for word in ("computing", "communicating", "waiting")]
    assert sum(shares) == pytest.approx(1.0)


def test_wide_pipeline_is_proved_and_its_delay_costs_are_shown(capsys, tmp_path):
    path = tmp_path / "pipe.json"
    write_schedule(path, Schedule("pipe", Cluster.regular(2, 2), AllReduce(sync=Pipeline(width=3))))
    costs = pytest.approx({"stability_limit": (5**0.5 - 1) / 2, "noise_factor": 1.2247191})
    text = " ".join(ran(capsys, ["verify", str(path)]).out.split())
    assert "A pipeline of 3 was asked for, although beyond 2 a step still takes the longer" in text
    proof = run_json(capsys, "verify", path, "--json")
    assert proof["metrics"]["pipeline"] == costs
    assert run_json(capsys, "simulate", path, "--json")["pipeline"] == costs
    assert "Its gradients are 2 late" in ran(capsys, ["simulate", str(path)]).out
    write_schedule(path, Schedule("pipe", Cluster.regular(2, 2), AllReduce(sync=Pipeline())))
    assert "was asked for" not in ran(capsys, ["verify", str(path)]).out


def test_pipelines_and_codecs_are_timed_and_described(capsys, tmp_path):
    """4 nodes, 1 MB over 1 MB/s, a free codec: an all-reduce takes 1.5 s in float32 and 1.5 · 65/256 s in int8."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("num_nodes: 4\nworkers_per_node: 1\nhardware: {nic: {bandwidth: 1MB/s}, codec: {int8: {}}}\n")
    paths = []
    for name, sync, transport in (
        ("plain", Synchronous(), Transport()),
        ("pipe", Pipeline(), Transport()),
        ("small", Pipeline(), Transport(codec=Codec.INT8)),
    ):
        paths.append(tmp_path / f"{name}.json")
        write_schedule(paths[-1], Schedule(name, Cluster.regular(4, 1), AllReduce(sync=sync, transport=transport)))
    options = ("--cluster", cluster, "--model-bytes", "1MB", "--set", "compute=1s", "--json")
    rows = run_json(capsys, "simulate", *paths, *options)["schedules"]
    assert [row["seconds_per_step"] for row in rows] == pytest.approx([2.5, 1.5, 1.0])
    assert [row["communication_seconds_per_step"] for row in rows] == pytest.approx([1.5, 1.5, 1.5 * 65 / 256])
    assert [row["nic_bytes_per_step"] for row in rows] == pytest.approx([1.5e6, 1.5e6, 1.5e6 * 65 / 256])
    every = "All-Reduce of gradients in every step"
    late = f"{every} (Pipe-SGD), applied 1 step late"
    assert [row["runs"] for row in rows] == [every, late, f"{late}, int8"]
    trace = tmp_path / "trace.json"
    found = run_json(capsys, "simulate", paths[1], *options, "--rounds", "40", "-o", trace)
    assert found["seconds_per_step"] == pytest.approx(1.5)
    assert found["makespan_seconds"] == pytest.approx(1 + 40 * 1.5)
    assert (found["sync"], found["nic_bytes_per_step"]) == ("pipeline", pytest.approx(1.5e6))
    assert found["share_communicating"] <= 1
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    for track in {event["tid"] for event in spans}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == track)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(mine)), "spans of a track do not overlap"
    assert f"{late}, int8" in ran(capsys, ["show", str(paths[2])]).out


def test_simulate_writes_pictures_and_traces(capsys, figure_10, tmp_path):
    for ending in ("png", "json"):
        path = tmp_path / f"timeline.{ending}"
        arguments = ["simulate", figure_10, "--set", "jitter=0.2", "--set", "disturb=hop", "--rounds", "20", "-o", path]
        assert main([str(a) for a in arguments]) == 0
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} == {"compute", "wait"}


def test_simulate_compares_schedules_as_in_the_worked_example(capsys, figure_10, tmp_path):
    every_4 = tmp_path / "every4.json"
    assert main(["design", "4x4", "--build", "allreduce(every=4)", "-o", str(every_4)]) == 0
    document = run_json(capsys, "simulate", figure_10, every_4, "--model-bytes", "552MB", "--json")
    first, second = document["schedules"]
    assert first["communication_seconds_per_step"] == pytest.approx(0.1104)
    assert first["consensus_distance"] == pytest.approx(8 / 7)
    assert second["communication_seconds_per_step"] == pytest.approx(0.05175)
    assert second["consensus_distance"] == pytest.approx(1.40625)


def test_simulate_compares_predicted_time_to_loss_as_design_does(capsys, tmp_path):
    network, paths = ["--set", "nic=100MB/s", "--model-bytes", "50MB"], []
    for name in ("allreduce", "allreduce(every=4)", "diloco"):
        paths.append(tmp_path / f"{len(paths)}.json")
        assert main(["design", "2x2", "--build", name, "-o", str(paths[-1])]) == 0
    capsys.readouterr()
    picture = tmp_path / "several.png"
    rows = run_json(capsys, "simulate", *paths, *network, "-o", picture, "--json")["schedules"]
    assert [row["steps_ratio"] for row in rows][::2] == [1.0, None]
    assert rows[1]["seconds_to_a_loss"] == pytest.approx(rows[1]["steps_ratio"] * rows[1]["seconds_per_step"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    hardware = Hardware(nic=Link.of_bandwidth(1e8), model_bytes=50_000_000, compute=0.05)
    option = measure(load_schedule(paths[1]), PlanRequest(cluster=Cluster.regular(2, 2, hardware=hardware)))
    assert rows[1]["steps_ratio"] == pytest.approx(option.steps_ratio)
    shown = " ".join(ran(capsys, ["simulate", *map(str, paths), *network]).out.split())
    assert "Steps to a loss: predicted on shuffled data, as by `partreduce design --optimizer any`" in shown
    text = run_error(capsys, "simulate", *paths, "-o", tmp_path / "several.json", code=2)
    assert "several.json: ends in '.json'; pictures" in text


@pytest.mark.usefixtures("brief")
def test_design_lists_its_assumptions_in_one_line(capsys, tmp_path):
    text = " ".join(ran(capsys, ["design", "2x2", "--effort", "0.11", "--set", "nic=1GB/s"]).out.split())
    assert " assumed --set inside=10GB/s, --model-bytes=100MB, --set compute=50ms, --optimizer=adam " in text
    place = tmp_path / "cluster.yaml"
    place.write_text("num_nodes: 2\nworkers_per_node: 2\nhardware: {nic: {bandwidth: 1GB/s}, model_bytes: 8MB}\n")
    assumed = {"--set inside": "free", "--set compute": "50ms", "--optimizer": "adam"}
    assert run_json(capsys, "design", place, "--effort", "0.11", "--json")["assumed"] == assumed
    options = ["--set", "compute=1ms", "--set", "inside=10GB/s", "--optimizer", "sgd"]
    assert main(["design", str(place), "--effort", "0.11", *options]) == 0
    assert "assumed " not in capsys.readouterr().out, "no value is assumed"


def test_links_without_a_rate_are_free_and_listed_as_assumed():
    links = {"inside": Link(seconds_per_byte=1e-10), "node_nic": ((2, Link(latency=1e-6)),)}
    stated = Hardware(nic=Link(seconds_per_byte=1e-9), **links)
    cluster = Cluster.regular(3, 2, hardware=stated)
    assert hardware_defaults(cluster, {"compute": 1.0}, model_bytes="1MB") == {"--set nic": "free on 1 of 3 nodes"}
    assert hardware_defaults(cluster, {"compute": 1.0, "nic": 1e9}, model_bytes="1MB") == {}
    alone = Cluster.regular(1, 2, hardware=Hardware(inside=links["inside"]))
    assert hardware_defaults(alone, {"compute": 1.0}, model_bytes="1MB") == {}, "nothing leaves the node"


def test_design_lists_and_explains_the_catalogue(capsys):
    document = run_json(capsys, "design", "--list", "--json")
    assert [e["name"] for e in document["entries"]] == registry.names()
    fitting = run_json(capsys, "design", "3,3,2", "--list", "--json")["entries"]
    assert all(bool(e.get("why_not")) != e["fits"] for e in fitting)
    assert [e["name"] for e in fitting if e["fits"]].count("allreduce") == 1
    one = run_json(capsys, "design", "--list", "--build", "prague-figure-10", "--json")
    assert "Prague" in one["source"]
    assert main(["design", "--list"]) == 0


def test_schema_command_prints_the_schema_of_the_loader(capsys):
    assert run_json(capsys, "schema") == schedule_schema()


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["bogus"], 2, "No such command"),
    (["design", "4by4", "--build", "allreduce"], 2, "4x4"),
    (["design", "4x4", "--build", "allreduce", "--model", "m.py:build"], 2, "--model: cannot be combined with --build"),
    (["design", "4x4", "--build", "allreduce(every)"], 2, "KEY=VALUE"),
    (["design", "4x4", "--build", "allreduce(every=2, every=3)"], 2, "every is given twice"),
    (["design", "4x2", "--build", "diloco(fragments=40)"], 2, "need at least 40 steps per round, and a worker has 30"),
    (["design", "4x2", "--build", "diloco(late=30)"], 2, "sync.merge.steps: is 30"),
    (["design", "4x2", "--build", "regions-diloco(regions=3)"], 2, "4 nodes are not 3 regions of as many"),
    (["design", "4x4", "--build", "allreduce", "-o", "/nowhere/x.json"], 74, "/nowhere/x.json"),
    (["design", "4x4", "-o", "/nowhere/x.json"], 74, "no folder /nowhere"),
    (["design", "4x4", "--plot", "front.gif"], 2, "front.gif"),
    (["design", "2x4", "--set", "slow=8:5"], 2, "--set slow: worker 8 is out of range; workers are 0..7"),
    (["design", "4x4", "--set", "nic=0GB/s"], 2, "--set nic: '0GB/s'"),
    (["design", "4x4", "--max", "communication=fast"], 2, "--max communication: 'fast'"),
    (["verify", "/nowhere/x.json"], 74, "/nowhere/x.json"),
    (["verify", "x.json", "--max-bytes", "lots"], 2, "lots"),
    (["schema", "graph"], 2, "'schedule', 'cluster'"),
    (["design", "--list", "--build", "nothing-like-it"], 2, "partreduce design --list"),
    (["design", "--list", "--sync", "delay"], 2, "--sync: says nothing to --list"),
    (["design", "--build", "allreduce"], 2, "CLUSTER: is missing"),
    (["design", "4x4", "--max", "groups=4"], 2, "did you mean group"),
    (["design", "4x4", "--max", "group=1"], 2, "--max group: expected an integer >= 2, got '1'"),
    (["design", "4x4", "--max", "period=513"], 2, "--max period: '513' is more than 512 phases"),
    (["design", "4x4", "--set", "nik=5GB/s"], 2, "did you mean nic"),
    (["design", "4x4", "--set", "nic"], 2, "--set 'nic': write KEY=VALUE, such as nic=5GB/s"),
    (["design", "4x4", "--set", "nic=5GB/s", "--set", "nic=6GB/s"], 2, "nic is given twice"),
    (["design", "4x4", "--set", "nic=5Gb/s"], 2, "--set nic: '5Gb/s' could mean bits or bytes"),
    (["design", "4x4", "--set", "rails=0"], 2, "--set rails: expected an integer >= 1, got '0'"),
    (["simulate", "a.json", "b.json", "--rounds", "4"], 2, "--rounds: is for one schedule"),
    (["measure", "--steps", "30"], 2, "--steps: is about a job"),
    (["measure", "train.py:job", "--repetitions", "3"], 2, "--repetitions: is about the cluster"),
    (["run", "--workers", "4", "--simulate-nodes", "9", __file__], 2, "expected a divisor of 4 workers, got 9"),
    (["run", "--workers", "4", "--tolerate-failures", "4", __file__], 2, "expected 0 to 3 for 4 workers, got 4"),
    (["measure"], 2, "--workers N: measure runs on all workers"),
    (["measure", "/nowhere/job.py:job", "--workers", "2"], 74, "/nowhere/job.py: cannot be read"),
    (["design", "4x4", "--sync", "jit"], 2, "'jit' is not one of 'any', 'synchronous', 'delay', 'pipeline', "),
    (["design", "4x4", "--sync", "iteration_gap", "--tolerate-failures", "1"], 2,
        "--sync: expected synchronous, delay or pipeline with tolerate_failures"),
    (["design", "4x4", "--set", "touched=x:1%"], 2, "--set: touched needs --model FILE.py:NAME"),
    (["verify", "--max-bytes", "0", "s.json"], 2, "--max-bytes: '0' has no unit"),
    (["show", "--max-bytes", "1e99TB", "s.json"], 2, "--max-bytes: '1e99TB' is more than 9 PB"),
    (["design", "", "--build", "allreduce"], 74, "a file with an empty name"),
    (["design", "2x4", "--codec", "int7"], 2, "--codec': 'int7' is not one of 'any', 'none', 'float16'"),
    (["design", "2x4", "--max", "group=9"], 2, "--max group: is 9; it lies between 2 and the number of workers, 8"),
    (["design", "2x4", "--effort", "0"], 2, "--effort: is 0.0"),
    (["design", "2x4", "--tolerate-failures", "9"], 2, "--tolerate-failures: expected 1 to 4, got 9 of 8 workers"),
    (["measure", "-n", "2", "--model-bytes", "0"], 2, "--model-bytes: '0' has no unit"),
    (["import", "x.txt", "--format", "xls"], 2, "--format': 'xls' is not one of 'node-link'"),
    (["import", "x.txt", "--param", "directed"], 2, "--param: 'directed': write KEY=VALUE"),
    (["show", "x.json", "--max-bytes", "many"], 2, "--max-bytes: 'many'"),
    (["run", "--workers", "2", "--tolerate-failures", "2", "x.py"], 2,
        "--tolerate-failures: expected 0 to 1 for 2 workers"),
    (["run", "--nproc-per-node", "0", "x.py"], 2, "--nproc-per-node"),
])  # fmt: skip
def test_usage_error_is_one_line_with_its_exit_code(capsys, arguments, code, words):
    assert words in run_error(capsys, *arguments, code=code)


@pytest.mark.parametrize(("options", "code", "words"), [
    (["--set", "slow=3"], 2, "WORKER:FACTOR"),
    (["--set", "slow=99:2x"], 2, "workers are 0..15"),
    (["--set", "slow=1:2x", "--set", "slow=1:3x"], 2, "named twice"),
    (["--set", "compute=fast"], 2, "--set compute: 'fast'"),
    (["--set", "compute=50"], 2, "no unit"),
    (["--set", "disturb=earthquake"], 2, "hop"),
    (["--set", "disturb=hop:0"], 2, "--set disturb: 'hop:0': '0' is no factor"),
    (["--set", "disturb=delay:²:5ms"], 2, "write hop[:FACTOR]"),
    (["--set", "jitter=1e300"], 2, "--set jitter: is 1e+300; it must be <= 1000"),
    (["--set", "jitter=much"], 2, "--set jitter: 'much' is not a number >= 0"),
    (["--set", "compute=1e99s"], 2, "--set compute: is 1e+99; it must be <= 1e+09"),
    (["--set", "nic=1e-99B/s"], 2, "--set nic: link.seconds_per_byte: is 1e+99; it must be <= 1e+09"),
    (["--cluster", "3x3"], 2, "schedule is for 4x4"),
    (["--algorithm", "star"], 2, "'ring', 'hierarchical'"),
    (["--rounds", "0"], 2, "--rounds"),
    (["--trace", "/nowhere/t.csv"], 74, "/nowhere/t.csv"),
    (["-o", "picture.gif"], 2, "picture.gif"),
])  # fmt: skip
def test_simulate_usage_error_is_one_line_with_its_exit_code(capsys, figure_10, options, code, words):
    assert words in run_error(capsys, "simulate", figure_10, *options, code=code)


@pytest.mark.parametrize(("text", "words"), [
    ("num_nodes: 1\nworkers_per_node: 1\n", "has 1 worker"),
    ("num_nodes: 2\nworkers_per_node: 2\nhardware: {jitter: -1}\n", "hardware.jitter"),
    ("num_nodes: 0\nworkers_per_node: 2\n", "num_nodes"),
])  # fmt: skip
def test_invalid_cluster_file_is_not_a_usage_error(capsys, tmp_path, text, words):
    (path := tmp_path / "cluster.yaml").write_text(text)
    assert words in run_error(capsys, "design", path, code=65)


@pytest.mark.parametrize(("verb", "shown"), [
    ("design", ["ring|hierarchical", "synchronous|delay|pipeline|iteration_gap|partial", "[default: balanced]"]),
    ("import", ["metropolis|uniform|best-constant", "[default: metropolis]"]),
    ("measure", ["shuffled|per-worker|per-node", "[default: 60]"]),
    ("run", ["--nproc-per-node", "--simulate-nodes", "[default: 1]"]),
    (None, ["--debug", "--version"]),
])  # fmt: skip
def test_help_shows_choices_and_defaults(capsys, monkeypatch, verb, shown):
    monkeypatch.setenv("COLUMNS", "300")
    text = ran(capsys, [verb, "--help"] if verb else ["--help"]).out
    assert [words for words in shown if words not in text] == []
    assert "<bool>" not in text


def test_command_line_choices_match_the_libraries():
    from partreduce.commands import design, import_

    assert list(import_.Format) == formats()
    assert list(import_.Weights) == list(METHODS)
    assert list(design.AlgorithmChoice) == ["any", *AllReduceAlgorithm]
    assert set(design.SyncChoice) == {"any", *Delay, "iteration_gap", "partial"}
    assert set(design.CodecChoice) == {"any", *Codec} - {"int4"}
    assert list(design.OptimizerChoice) == ["any", *Optimizer, "adamw"]


def test_internal_error_prints_one_line_and_writes_a_report(capsys, monkeypatch, figure_10):
    def broken(*arguments, **named):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("partreduce.commands.verify.prove", broken)
    line = run_error(capsys, "verify", figure_10, code=70)
    report = Path(line.split("the traceback is in ")[1].split(" (")[0])
    assert "ZeroDivisionError" in report.read_text()
    report.unlink()
    assert "Traceback" in ran(capsys, ["--debug", "verify", str(figure_10)], 70).err


def test_show_of_a_strategy_without_groups_names_another_command(capsys, tmp_path):
    path = tmp_path / "pairs.json"
    write_schedule(path, Schedule("pairs", Cluster.regular(1, 2), Pairwise(active=(0,))))
    assert "strategy 'pairwise' has no fixed groups to draw; `partreduce simulate`" in run_error(
        capsys, "show", path, code=65
    )


def test_debug_shows_the_traceback_of_a_users_mistake_too(capsys, tmp_path):
    shown = ran(capsys, ["--debug", "verify", str(tmp_path / "missing.json")], 74).err
    assert "Traceback" in shown
    assert "FileError" in shown


def test_keyboard_interrupt_exits_with_130(capsys, monkeypatch, figure_10):
    def interrupt(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("partreduce.commands.verify.prove", interrupt)
    assert "Traceback" not in ran(capsys, ["verify", str(figure_10)], 130).err


def test_show_rejects_strategies_without_fixed_phases(capsys, tmp_path):
    path = tmp_path / "no-phases.json"
    write_schedule(path, Schedule("g", Cluster.regular(2, 4), DynamicGroups()))
    assert "'dynamic_groups'" in run_error(capsys, "show", path, code=65)


def test_synchronous_server_is_simulated_without_a_steady_step(capsys, tmp_path):
    path = tmp_path / "server.json"
    write_schedule(path, Schedule("s", Cluster.regular(2, 2), Server()))
    document = run_json(capsys, "simulate", path, "--json", "--model-bytes", "1MB", "--rounds", "8")
    assert document["seconds_per_step"] > 0.05
    assert "steady_seconds_per_step" not in document


def test_fragments_send_equal_bytes_with_a_lower_peak(capsys, tmp_path):
    path, network, found = tmp_path / "diloco.json", ["--set", "nic=1GB/s", "--model-bytes", "100MB"], {}
    for fragments in (1, 4):
        run_json(capsys, "design", "4x2", "--build", f"diloco(fragments={fragments})", "-o", path, "--json")
        found[fragments] = run_json(capsys, "simulate", path, *network, "--json")
    assert found[4]["nic_bytes_per_step"] == pytest.approx(found[1]["nic_bytes_per_step"])
    assert found[4]["peak_nic_bytes"] == pytest.approx(found[1]["peak_nic_bytes"] / 4)
    assert "43.75 MB in the step that sends most" in ran(capsys, ["simulate", str(path), *network]).out
    exactly = {"of_worker": 43_750_000, "of_node": 43_750_000, "in_flight": 25_000_000}
    assert found[4]["sent_bytes"] == exactly
    assert run_json(capsys, "verify", path, "--json", "--model-bytes", "100MB")["metrics"]["sent_bytes"] == exactly
    text = " ".join(ran(capsys, ["verify", str(path), "--model-bytes", "100MB"]).out.split())
    assert "in one step no more than 43.75 MB leave a worker and 43.75 MB a node, and operations on no more" in text
    assert "on no more than 25 MB are in flight at a worker." in text


def test_sent_bytes_are_a_fact_of_fixed_rounds_only(capsys, tmp_path):
    path = tmp_path / "per-worker.json"
    write_schedule(path, Schedule("p", Cluster.regular(2, 2), AllReduce(steps_per_round=(1, 2, 1, 1))))
    assert main(["verify", str(path), "--model-bytes", "1MB"]) == 0
    assert "a fact: in one round no more than 1.5 MB leave a worker" in " ".join(capsys.readouterr().out.split())
    write_schedule(path, Schedule("g", Cluster.regular(2, 4), DynamicGroups()))
    assert "a fact of fixed rounds only" in run_error(capsys, "verify", path, "--model-bytes", "1MB", code=2)


def test_noloco_is_built_proved_and_compared_without_metrics(capsys, tmp_path):
    path, other = tmp_path / "noloco.json", ROOT / "examples" / "two-level.json"
    assert run_json(capsys, "design", "4x4", "--build", "noloco(every=20)", "-o", path, "--json")["period"] == 8
    document = run_json(capsys, "verify", path, "--json", "--model-bytes", "1MB")
    assert document["verdict"] == "proved"
    assert document["metrics"]["sent_bytes"] == {"of_worker": 1_000_000, "of_node": 4_000_000, "in_flight": 1_000_000}
    shown = " ".join(ran(capsys, ["verify", str(path)]).out.split())
    assert "the outer parameters come to agree, by a factor of at most 0.3159 every 160 steps (8 rounds)" in shown
    pairs, levels = run_json(capsys, "simulate", path, other, "--json")["schedules"]
    assert (pairs["period"], pairs["contraction"], pairs["steps_ratio"]) == (8, None, None)
    assert pairs["memory_bytes"] == levels["memory_bytes"] == 300_000_000
    assert main(["simulate", str(path), "--rounds", "2"]) == 0
    assert "NoLoCo: in pairs, 8 rounds in turn, every 20 steps, momentum 0.5" in capsys.readouterr().out
    unstable = ("design", "2x2", "--build", "noloco(lr=1.95,momentum=0.9)")
    assert "radius of a period is 5.94" in run_error(capsys, *unstable, code=2)


def test_regions_match_the_switches(capsys, tmp_path):
    path = tmp_path / "regions.json"
    cluster = ROOT / "examples" / "two-regions.yaml"
    run_json(capsys, "design", cluster, "--build", "regions-diloco(every=3)", "-o", path, "--json")
    rounds, last = json.loads(path.read_text())["strategy"]["phases"]
    assert (rounds["repeat"], [block["across"] for block in rounds["phase"]]) == (2, [[1]])
    assert [block["across"] for block in last] == [[0, 1]]


@pytest.mark.parametrize("kind", [DynamicGroups(), Pairwise(active=(0, 1)), Server(), Server(synchronous=False)])
def test_simulate_compares_kinds_without_fixed_phases(capsys, tmp_path, kind):
    path, other = tmp_path / "no-phases.json", tmp_path / "phases.json"
    write_schedule(path, Schedule("g", Cluster.regular(2, 2), kind))
    write_schedule(other, Schedule("a", Cluster.regular(2, 2), AllReduce()))
    options = ["--set", "nic=1GB/s", "--set", "compute=10ms", "--json"]
    fixed, free = run_json(capsys, "simulate", other, path, *options)["schedules"]
    assert fixed["predicted"] == "exact"
    assert (free["predicted"], free["period"], free["consensus_distance"]) == ("simulated", None, None)
    assert free["seconds_per_step"] > 0.01
    assert free["nic_bytes_per_step"] > 0
    assert free["memory_bytes"] >= 1e8
    assert free["largest_age_steps"] >= 0


@pytest.mark.parametrize(
    "kind", [DynamicGroups(), Pairwise(active=(0, 1, 2, 3)), Pairwise(active=(0, 1), sync=DelayedAveraging())]
)
def test_simulate_runs_the_protocol_of_kinds_without_phases(capsys, tmp_path, kind):
    path = tmp_path / "protocol.json"
    write_schedule(path, Schedule("g", Cluster.regular(2, 4), kind))
    options = ["--set", "compute=50ms", "--set", "slow=3:5x", "--model-bytes", "552MB", "--rounds", "20"]
    document = run_json(capsys, "simulate", path, "--json", *options)
    assert 0.05 < document["seconds_per_step"] < 1.0
    assert "steady_seconds_per_step" not in document, "this kind has no exact step time"
    assert document["workers"][3]["computing_seconds"] == pytest.approx(5.0)
    shares = [document[f"share_{word}"] for word in ("computing", "communicating", "waiting")]
    assert sum(shares) >= 1.0 - 1e-9, "communication overlaps with compute"
    assert main([str(a) for a in ("simulate", path, *options, "-o", tmp_path / "timeline.png")]) == 0
    assert "the mean over the steps of all" in capsys.readouterr().out


def test_timeline_too_large_for_memory_is_rejected(capsys, tmp_path):
    path = tmp_path / "big.json"
    assert main(["design", "250000x4", "--build", "prague-figure-10", "-o", str(path)]) == 0
    assert "at most 50 rounds fit" in run_error(capsys, "simulate", path, code=65)


def test_help_paragraphs_contain_no_line_breaks():
    verbs = typer.main.get_command(build_app()).commands
    for name, verb in verbs.items():
        assert verb.help, name
        assert all("\n" not in paragraph for paragraph in verb.help.split("\n\n")), name


def test_each_verb_has_three_examples_that_parse():
    assert set(EXAMPLES) == {*VERBS, *HIDDEN}
    verbs = typer.main.get_command(build_app()).commands
    for verb, examples in EXAMPLES.items():
        assert len(examples) == (0 if verb == "generator" else 3)
        for example in examples:
            words = shlex.split(example)
            rest = words[words.index("partreduce") + 1 :]
            assert rest[0] == verb
            if "--help" not in rest:
                context = verbs[verb].make_context(verb, rest[1:])
                cluster_settings(context.params.get("settings"))
                limits_of(context.params.get("most"))


def test_help_tables_list_every_key_with_a_valid_example(capsys):
    for option, rows, read in (("--set", SETTING_KEYS, cluster_settings), ("--max", LIMIT_KEYS, limits_of)):
        with pytest.raises(InputError) as unknown:
            read(["?=1"])
        known = str(unknown.value).partition("is not one of ")[2].split(", ")
        assert {example.partition("=")[0] for example, _ in rows} == set(known), option
        for example, _ in rows:
            read([example])
    assert "--set slow=3:5x" in ran(capsys, ["help", "settings"]).out
    assert "--max period=24" in ran(capsys, ["help", "limits"]).out
    assert main(["help", "nothing"]) == 2


def test_help_panels_are_ordered_and_end_with_general(capsys):
    for verb in VERBS + HIDDEN:
        text = ran(capsys, [verb, "--help"]).out
        assert "Usage: partreduce" in text
        panels = [line.strip("╭─╮ \n") for line in text.splitlines() if line.startswith("╭")]
        places = [PANELS.index(panel) for panel in panels if panel != "Arguments"]
        assert places == sorted(places)
        assert panels[-1] == "General"
        if verb == "design":
            assert panels == [
                "Arguments", "The cluster", "The model", "The catalogue", "How workers may average",
                "Objective and limits", "Output", "General",
            ]  # fmt: skip
