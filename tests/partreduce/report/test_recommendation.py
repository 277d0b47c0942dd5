"""The answer of `design`: at most 40 lines of 80 columns, in a fixed order, with the planner's numbers."""

import json
import re
from dataclasses import replace

import pytest

from helpers.command_runs import ran
from helpers.jobs import with_links
from partreduce import Cluster, Data, Limits, PlanRequest, describe
from partreduce.__main__ import main
from partreduce.planner import plan as planning
from partreduce.planner.job import EFFORTS
from partreduce.planner.measuring import measure, reprice
from partreduce.planner.options import competitors
from partreduce.planner.plan import plan
from partreduce.planner.recommend import allowed_options, family, gain, recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.report.recommendation import compare, recommendation, three_reasons, times, variants
from partreduce.schedulers import registry
from partreduce.strategies import PartialAllReduce
from partreduce.types import Delay

LABELS = ("time per step", "speedup", "divergence", "memory", "tuning", "guarantee")
ROWS = ("recommended", "best simple", "fastest", "no delay", "All-Reduce")
FAST = ["--effort", "0.3"]
TABLES = '''"""A network with an embedding."""
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(20000, 32, mode="sum"), torch.nn.Linear(32, 8))
'''
JOBS = {
    "slow links": ["4x4", "--set", "nic=25MB/s", "--model-bytes", "500MB"],
    "one node": ["1x8"],
    "uneven nodes": ["5,3,1", "--set", "nic=25MB/s", "--set", "compute=100ms"],
    "many": ["1000x8", "--set", "nic=100MB/s", "--model-bytes", "500MB"],
    "slow worker": ["4x4", "--set", "nic=5MB/s", "--model-bytes", "2.2MB", "--set", "slow=3:5", "--optimizer", "sgd"],
    "codecs": ["4x4", "--set", "nic=25MB/s", "--model-bytes", "500MB", "--codec", "any", "--optimizer", "adam"],
    "tables": ["2x2", "--model", "model.py:make", "--set", "nic=100MB/s", "--set", "touched=0.weight:1%:2%:3%"],
    "limits": ["4x4", "--max", "consensus-distance=8/7", "--max", "group=8", "--objective", "communication"],
    "sorted data": ["3,3,2", "--set", "nic=100MB/s", "--data", "per-worker"],
    "random steps": ["2x4", "--set", "jitter=0.3", "--set", "nic=1GB/s", "--optimizer", "momentum"],
    "failures": ["2x4", "--set", "nic=1GB/s", "--tolerate-failures", "1"],
    "partial": ["3x1", "--sync", "partial", "--set", "disturb=hop", "--model-bytes", "1MB"],
    "gap": ["4x2", "--sync", "iteration_gap", "--set", "jitter=0.3", "--model-bytes", "1MB"],
    "racks and late": ["8x2", "--sync", "delay", "--set", "nic=100MB/s"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(TABLES)


@pytest.fixture
def decide_once(monkeypatch):
    """Decide equal jobs of a test once, such as for `design` as text and as JSON."""
    decide, known = planning.decide, {}

    def once(requested, *say):
        if requested not in known:
            known[requested] = decide(requested, *say)
        return known[requested]

    monkeypatch.setattr(planning, "decide", once)


QUICK = ("slow links", "many", "slow worker", "codecs", "random steps")


@pytest.mark.parametrize(("job", "effort"), [*((job, FAST) for job in JOBS), *((job, []) for job in QUICK)])
@pytest.mark.usefixtures("folder")
def test_answer_fits_a_screen_with_parts_in_order(job, effort, capsys, request):
    if effort:
        request.getfixturevalue("brief")
    lines = ran(capsys, ["design", *JOBS[job], *effort]).out.splitlines()
    assert len(lines) <= 40, "\n".join(lines)
    assert max(map(len, lines)) <= 80, [line for line in lines if len(line) > 80]
    starts = [*LABELS, *ROWS, "• ", "• ", "• "]
    places = iter(range(len(lines)))
    for start in starts:
        assert any(lines[place].startswith(start) for place in places), (start, lines)
    assert sum(line.startswith("• ") for line in lines) == 3


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("slow", "factor"), [((2, 3), "1.40"), ((), "")])
def test_answer_prices_the_omitted_steps_of_slow_workers(capsys, slow, factor):
    """In 2x2 half of the workers take one step of three: two thirds of the steps, to the power of -0.83."""
    words = ["design", "2x2", "--set", "compute=160ms", "--model-bytes", "37MB", *FAST]
    text = " ".join(ran(capsys, [*words, *(word for one in slow for word in ("--set", f"slow={one}:3"))]).out.split())
    assert ("because slow workers take fewer" in text) == bool(factor)
    assert not factor or f"({factor}x because slow workers take fewer)" in text


COMPUTING = ["--set", "compute=160ms", "--model-bytes", "37MB"]


@pytest.mark.usefixtures("brief", "decide_once")
def test_answer_compares_with_the_cluster_without_slow_workers(capsys):
    """Worker 3 is on node 0; 15 workers need 16/15 of the steps for as many samples."""
    slow = ["4x4", *COMPUTING, "--set", "slow=3:5x", "--effort", "0.5"]
    text = " ".join(ran(capsys, ["design", *slow]).out.split())
    whole = json.loads(ran(capsys, ["design", *slow, "--json"]).out)["recommendation"]
    assert sorted(set(whole["steps_per_round"])) == [1, 5], "so the price counts the omitted steps of worker 3"
    hardware = with_links(10e9, 5e9, model_bytes=37_000_000, compute=0.16)
    left = PlanRequest(cluster=replace(Cluster.parse("3,4,4,4"), hardware=hardware), optimizer=Optimizer.ADAM)
    ours, theirs = whole["step_seconds"] * whole["steps_ratio"], min(one.time for one in competitors(left))
    (speedup,) = re.findall(r" slow workers (\S+)x as fast without worker 3 \(lost samples counted\) ", text)
    assert float(speedup) == pytest.approx(ours / theirs * 15 / 16, rel=0.03), "the best is a simple schedule"


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("slow", [(2, 3), ()])
def test_removing_slow_workers_is_explained_even_if_it_does_not_pay(capsys, slow):
    """Without two of four workers at 1.5 times the compute time a step has half of the samples, not five sixths."""
    arguments = ["design", "1x4", *COMPUTING, "--optimizer", "sgd", *FAST, "--explain"]
    text = " ".join(
        ran(capsys, [*arguments, *(word for one in slow for word in ("--set", f"slow={one}:1.5"))]).out.split()
    )
    assert "lost samples counted" not in text
    assert ("two answers are yours to weigh: leave workers 2, 3 out, or give a smaller batch" in text) == bool(slow)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("words", [("1x2", "--set", "slow=1:3"), ("1x4", "--set", "slow=3:5", "--max", "group=4")])
def test_cluster_without_its_slow_workers_may_be_too_small(capsys, words):
    """A single worker needs no schedule, and a limit on groups may exceed the remaining workers."""
    text = ran(capsys, ["design", *words, *FAST]).out
    assert ("\nslow workers" in text) == (words[0] == "1x4")


@pytest.mark.usefixtures("decide_once")
def test_thorough_answer_prints_its_gain(capsys, monkeypatch):
    monkeypatch.setitem(EFFORTS, "thorough", 0.5)
    arguments = ["design", *JOBS["slow links"], "--effort", "thorough"]
    assert main([*arguments, "--json"]) == 0
    (reason,) = (one for one in json.loads(capsys.readouterr().out)["reasons"] if one.startswith("the quick answer"))
    lines = ran(capsys, arguments).out.splitlines()
    assert len(lines) <= 40
    assert f"searched {reason}" in " ".join(" ".join(lines).split())


@pytest.mark.usefixtures("brief", "decide_once")
def test_all_and_explain_print_every_reason_and_caution(capsys):
    arguments = ["design", *JOBS["slow links"], *FAST]
    document = json.loads(ran(capsys, [*arguments, "--json"]).out)
    text = " ".join(ran(capsys, [*arguments, "--all", "--explain"]).out.split())
    for sentence in [*document["reasons"], *document["cautions"]]:
        assert " ".join(sentence.split()) in text
    for option in document["baselines"]:
        assert option["name"] in text


SLOW = with_links(10e9, 25e6, model_bytes=500_000_000, compute=0.05)


@pytest.fixture(scope="module")
def job_and_options():
    job = PlanRequest(cluster=Cluster.regular(4, 4, hardware=SLOW))
    return job, competitors(job, until=0.0)


def test_family_recognizes_the_simple_baselines():
    place = Cluster.regular(4, 4)
    families = {
        name: family(registry.build(name, place))
        for name in ("allreduce", "local-sgd", "node-then-all", "diloco", "regions-diloco", "pairs-pairs-all", "ring",
                     "noloco", "hyper-cuboid", "prague-figure-10", "hierarchy")
    }  # fmt: skip
    assert {name: found for name, found in families.items() if found} == {
        "allreduce": "All-Reduce",
        "local-sgd": "All-Reduce",
        "node-then-all": "node, then all",
        "diloco": "DiLoCo",
        "regions-diloco": "DiLoCo",
    }
    quorum = replace(registry.build("allreduce", place).strategy, sync=PartialAllReduce(quorum=8))
    assert family(replace(registry.build("allreduce", place), strategy=quorum)) == ""


def test_simple_baseline_is_the_fastest_simple_schedule(job_and_options):
    job, options = job_and_options
    for chosen in (recommend(options, job), next(one for one in options if one.name == "prague-figure-10")):
        compared = compare(chosen, options, job)
        assert family(compared.simple.schedule)
        assert (compared.simple is chosen) == bool(family(chosen.schedule))
        simple = [one for one in allowed_options(options, job) if family(one.schedule) and not one.may_fail]
        assert compared.simple is chosen or compared.simple.time == min(one.time for one in simple)
        assert compared.fastest.time == min(one.time for one in allowed_options(options, job))
        assert not compared.without_delay.late
        assert compared.every_step.schedule.strategy.averages_gradients
        assert compared.over_every_step == gain(chosen, compared.every_step, job.data)
        assert compared.over_simple == gain(chosen, compared.simple, job.data)


def test_selected_schedule_shows_its_speedup_over_the_best_simple_one(job_and_options):
    job, options = job_and_options
    chosen = next(one for one in options if one.name == "prague-figure-10")
    taken = replace(job, take=chosen.name, effort=0.3)
    planned = plan(taken)
    lines = recommendation(planned, taken, {}, "Proved.")
    compared = compare(planned.recommendation, planned.options, taken)
    text = " ".join(" ".join(lines).split())
    assert f"Taken: {chosen.name}, for 4x4" in text
    assert f"speedup {times(compared.over_simple)} over the best simple schedule; " in text
    assert f"{times(compared.over_every_step)} over All-Reduce in every step" in text
    assert describe(chosen.schedule) in text


def test_variants_match_plans_for_other_optimizers(job_and_options):
    job, options = job_and_options
    chosen = recommend(options, job)
    found = {variant.optimizer: variant for variant in variants(chosen, job)}
    assert set(found) == {*Optimizer}
    for optimizer in Optimizer:
        other = replace(job, optimizer=optimizer)
        planned = plan(other)
        compared = compare(planned.recommendation, planned.options, other)
        assert found[optimizer].speedup == compared.over_every_step.ratio
        assert found[optimizer].is_other == (describe(chosen.schedule) != describe(compared.chosen.schedule))
    for other in (replace(job, optimizer=Optimizer.SGD), replace(job, data=Data.PER_WORKER)):
        mine = measure(chosen.schedule, other, algorithm=chosen.algorithm)
        assert reprice(chosen, other).steps_ratio == pytest.approx(mine.steps_ratio)
    assert next(variants(chosen, replace(job, optimizer=Optimizer.SGD))).optimizer is Optimizer.MOMENTUM


def test_speedup_for_another_optimizer_matches_its_own_answer(capsys):
    arguments = ["design", *JOBS["slow links"]]
    text = " ".join(ran(capsys, arguments).out.split())
    for words, name in (("SGD(?! with)", "sgd"), ("SGD with momentum", "Momentum")):
        (speedup,) = re.findall(rf"(\S+)x with {words}", text)
        answer = " ".join(ran(capsys, [*arguments, "--optimizer", name]).out.split())
        assert re.search(rf"{re.escape(speedup)}x \(\S+ to \S+x\) over All-Reduce in every step", answer)


@pytest.mark.usefixtures("brief")
def test_assumed_model_size_is_in_the_first_line(capsys):
    text = " ".join(ran(capsys, ["design", "2x2", *FAST]).out.split())
    assert "Recommendation for 2x2: 100 MB model (assumed: give --model-bytes), 50 ms computing per step: " in text
    assert "(assumed" not in ran(capsys, ["design", "2x2", "--model-bytes", "1MB", *FAST]).out


@pytest.mark.usefixtures("decide_once")
def test_optimizer_names_ignore_case_and_appear_in_the_help(capsys, monkeypatch):
    arguments = ["design", "2x2", "--json", "--effort", "0.1", "--optimizer"]
    plain, *others = (json.loads(ran(capsys, [*arguments, name]).out) for name in ("adam", "adamw", "AdamW", "ADAM"))
    assert others == [plain] * 3
    monkeypatch.setenv("COLUMNS", "160")
    assert "<any|sgd|momentum|adam|adamw>" in ran(capsys, ["design", "--help"]).out


def test_infeasible_limit_error_starts_with_the_least_possible(capsys):
    text = ran(capsys, ["design", "4x4", *JOBS["slow links"][1:], "--max", "communication=1us"], 4).err
    assert len(text) <= 170
    assert text.startswith("partreduce: --max communication: expected at least ")
    assert "; raise it or --max period (proved: crossing bound of 24 rounds: " in text


def test_third_reason_explains_why_the_fastest_is_not_chosen(job_and_options):
    job, options = job_and_options
    chosen = recommend(options, job)
    compared = compare(chosen, options, job)
    *_, third = three_reasons(compared, options, job)
    assert compared.fastest.may_fail
    assert third.startswith(f"The fastest ({chosen.time / compared.fastest.time:.2f}x over this) is not taken: under ")
    assert "five test networks did not reach its loss" in third
    rare = replace(job, optimizer=Optimizer.ADAM)
    others = competitors(rare, until=0.0)
    among = compare(recommend(others, rare), others, rare)
    assert among.fastest.extrapolated
    assert not among.fastest.may_fail
    *_, third = three_reasons(among, others, rare)
    assert " is not taken: it averages less often than any schedule that was measured, so its steps are a" in third
    alone = compare(chosen, [chosen, compared.every_step], job)
    *_, third = three_reasons(alone, [chosen, compared.every_step], job)
    assert third == "Nothing else that was compared is predicted to be faster by more than 2%."


@pytest.mark.usefixtures("brief", "decide_once")
def test_profitable_codec_is_priced_unless_codecs_are_allowed(capsys):
    arguments = ["design", *JOBS["slow links"], *FAST]
    assert main([*arguments, "--json"]) == 0
    (reason,) = (one for one in json.loads(capsys.readouterr().out)["reasons"] if one.startswith("--codec any"))
    text = " ".join(ran(capsys, arguments).out.split())
    (ratio,) = re.findall(r"would change at least (\S+)x faster with --codec int8", text)
    assert f"at least {ratio} times as fast" in reason
    assert "--codec" not in ran(capsys, [*arguments, "--codec", "any"]).out


@pytest.mark.usefixtures("brief", "decide_once")
def test_codec_is_priced_for_unequal_steps(capsys):
    arguments = ["design", "2x2", *JOBS["slow worker"][1:], "--effort", "0.6", "--sync", "synchronous"]
    document = json.loads(ran(capsys, [*arguments, "--json"]).out)
    assert document["recommendation"]["name"].startswith("paced ")
    (text,) = (one for one in document["reasons"] if one.startswith("--codec any"))
    ratio, name = re.search(r"training at least (\S+) times as fast \((paced .*): ", text).groups()
    assert f"at least {ratio}x faster with --codec " in " ".join(ran(capsys, arguments).out.split())
    taken = json.loads(ran(capsys, [*arguments, "--codec", "any", "--select", name, "--json"]).out)["recommendation"]
    assert taken["name"] == name
    assert taken["codec"] != "none"
    assert len(set(taken["steps_per_round"])) > 1


@pytest.mark.parametrize("requested", [{"limits": Limits(max_group=4)}, {"sync": Delay.LATE}])
def test_simple_baseline_ignores_limits_that_exclude_all(job_and_options, requested):
    free, options = job_and_options
    job = replace(free, **requested)
    allowed = competitors(job, until=0.0)
    chosen = recommend(allowed, job)
    compared = compare(chosen, allowed, job)
    assert not family(chosen.schedule)
    assert compared.every_step.schedule.strategy.averages_gradients
    best = compare(recommend(options, free), options, free).simple
    assert compared.simple.time <= best.time * 1.13, "the same cluster without the limit"
    assert compared.simple is not compared.every_step
