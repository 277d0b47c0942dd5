"""`partreduce design --model`: reading the user's file, measured row access, and the resulting schedule."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, PlanRequest, Schedule, load_schedule, write_schedule
from partreduce.commands import build_app
from partreduce.commands.design_model import measure_touched, read_model
from partreduce.errors import FileError, InputError
from partreduce.planner.parallelize import tables_of
from partreduce.planner.tables import ModelFacts, Table, plan_hybrid
from partreduce.runtime.sharding.row_access import OtherUses
from partreduce.strategies import AllReduce, Payload, Placement, TablePlacement
from partreduce.types import RowAccess
from partreduce.user_function import function_of
from partreduce.verify import prove
from partreduce.verify.base import Status
from partreduce.verify.certificate import confirm

CLUSTER = Cluster.regular(2, 2)
SLOW = Hardware(inside=Link(1e-5, 1e-9), nic=Link(1e-4, 4e-8), model_bytes=1, compute=0.01)

MODEL = """
import torch
from sizes import ROWS
class Words(torch.nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.words = torch.nn.Embedding(ROWS, 32, sparse=sparse)
        self.bags = torch.nn.EmbeddingBag(10, 32)
        self.shared = torch.nn.Embedding(20, 8)
        self.frozen = torch.nn.Embedding(30, 4)
        self.frozen.weight.requires_grad_(False)
        self.decoder = torch.nn.Linear(8, 20, bias=False)
        self.decoder.weight = self.shared.weight
        self.out = torch.nn.Linear(32, 3)
    def forward(self, words):
        self.shared(words % 20)
        return self.out(self.words(words).mean(1) + self.bags(words % 10))
def batches(number):
    for worker in range(number):
        yield torch.tensor([[7, 8, worker]]), torch.zeros(1)
def build():
    return Words(), batches(9)
def alone():
    return Words()
def sparse():
    return Words(sparse=True)
def few():
    return Words(), batches(3)
def endless():
    return Words(), ((torch.tensor([[step]]),) for step in range(10**9))
def outside():
    return Words(), [(torch.tensor([[ROWS]]),)] * 4
def with_optimizer(name="AdamW", **settings):
    model = Words()
    return model, getattr(torch.optim, name)(model.parameters(), lr=0.1, **settings)
def with_both():
    return *with_optimizer("SGD", momentum=0.9), batches(9)
def with_plain():
    return with_optimizer("SGD")
def with_another():
    return with_optimizer("RMSprop")
def with_too_much():
    return *with_both(), 7
def number():
    return 5
def fails():
    raise ValueError("no data\\nhere")
def exits():
    raise SystemExit(3)
def no_batches():
    return Words(), 5
def torn():
    return Words(), (torch.tensor([[1 // (1 - step)]]) for step in range(9))
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "sizes.py").write_text("ROWS = 20_000\n")
    return f"{tmp_path / 'model.py'}:"


def shares(touched):
    return [touched.worker, touched.node, touched.everyone]


@pytest.mark.parametrize(("name", "kind"), [
    ("with_optimizer", "adam"), ("with_both", "momentum"), ("with_plain", "sgd"), ("with_another", None),
    ("alone", None),
])  # fmt: skip
def test_optimizer_of_the_model_is_recognized(place, name, kind):
    facts = read_model(place + name, CLUSTER)
    assert facts.optimizer == kind
    assert bool(facts.num_steps) == (name == "with_both")
    command = ["design", "2x2", "--model", place + name, "--effort", "0.1", "--json"]
    printed = json.loads(CliRunner().invoke(build_app(), command).stdout)
    assert printed["assumed"].get("--optimizer") == (None if kind else "adam")


def test_tables_sizes_and_touched_rows_match_the_model(place):
    facts = read_model(place + "build", CLUSTER)
    tables = {table.parameter: table for table in facts.tables}
    assert list(tables) == ["words.weight", "bags.weight", "shared.weight"]
    assert facts.dense_bytes == 4 * (32 * 3 + 3)
    assert facts.num_steps == 2, "the ninth batch starts no full step"
    words = tables["words.weight"]
    assert (words.rows, words.columns, words.num_bytes) == (20_000, 32, 20_000 * 32 * 4)
    # Workers touch 7, 8 and the number of their batch; only batch 7, of worker 3 in the second step, repeats a row.
    each, node, everyone = (3 * 4 + 3 * 3 + 2) / 8, (4 * 2 + 4 + 3) / 4, (6 + 5) / 2
    assert shares(words.touched) == pytest.approx([rows / 20_000 for rows in (each, node, everyone)])
    assert words.ways == (Placement.DENSE, Placement.GATHER, Placement.SHARDED)
    assert tables["shared.weight"].ways == (Placement.DENSE,)
    assert "is used by 'decoder.weight' (Linear), too" in tables["shared.weight"].because


def test_measuring_stops_and_restores_the_model(place):
    facts = read_model(place + "endless", CLUSTER)
    assert facts.num_steps == 20
    model = torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Dropout(0.5)).train()
    measured, _ = measure_touched(model, [torch.tensor([1, 1, 2])] * 4, CLUSTER)
    assert shares(measured["0.weight"]) == pytest.approx([2 / 9] * 3)
    assert model.training
    assert not model[0]._forward_pre_hooks


def test_tables_without_row_access_stay_dense(place):
    tables = {table.parameter: table for table in read_model(place + "alone", CLUSTER).tables}
    assert tables["words.weight"].ways == (Placement.DENSE,)
    assert tables["words.weight"].because.startswith("it is not known how many of its rows a step touches")
    known = {"words.weight": RowAccess(0.01, 0.02, 0.04)}
    tables = {table.parameter: table for table in read_model(place + "alone", CLUSTER, touched=known).tables}
    assert tables["words.weight"].touched == known["words.weight"]
    assert Placement.SHARDED in tables["words.weight"].ways


@pytest.mark.parametrize(("name", "words"), [
    ("number", "returned what is no model (int)"),
    ("with_too_much", "returned what is no model (tuple)"),
    ("fails", "raised ValueError: no data here"),
    ("exits", "raised SystemExit: 3"),
    ("no_batches", "gave batches that are no iterable (int)"),
    ("torn", "batch 1 raised ZeroDivisionError"),
    ("few", "gave 3 batches, and a step of 4 workers takes one for each"),
    ("outside", "parameter 'words.weight': an index of a sample batch is out of range; its rows are 0..19999"),
    ("biuld", "has no function biuld; did you mean build?"),
    ("sparse", "table 'words.weight': has a sparse gradient, which way dense does not know; it is not known"),
    ("", "write FILE.py:NAME"),
])  # fmt: skip
def test_unreadable_model_is_a_one_line_error(place, name, words):
    with pytest.raises(InputError) as refusal:
        read_model(place + name, CLUSTER)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_files_and_tables_are_rejected(place, tmp_path):
    check_error(FileError, "there is no such file", read_model, f"{tmp_path / 'other.py'}:build", CLUSTER)
    with pytest.raises(InputError, match=r"names 'word', which no embedding of the model has; known: words\.weight"):
        read_model(place + "alone", CLUSTER, touched={"word": RowAccess(0.1, 0.1, 0.1)})


def test_shared_embeddings_are_one_table():
    model = torch.nn.ModuleDict({"a": torch.nn.Embedding(5, 3), "b": torch.nn.Embedding(5, 3)})
    model["b"].weight = model["a"].weight
    tables, dense = tables_of(model, {"a.weight": RowAccess(0.1, 0.1, 0.1)})
    assert [table.parameter for table in tables] == ["a.weight"]
    assert dense == 0
    assert tables[0].ways == (Placement.DENSE, Placement.GATHER, Placement.SHARDED)


def facts(*tables, dense_bytes=10**6):
    return ModelFacts(tables=tables, dense_bytes=dense_bytes, num_steps=1)


def table(name, rows, worker):
    return Table(parameter=name, rows=rows, columns=64, touched=RowAccess(worker, worker, worker))


def test_hybrid_plan_places_tables_and_plans_the_remaining_bytes():
    job = PlanRequest(cluster=Cluster.regular(2, 2, hardware=SLOW), effort=0.2, time_limit=3600.0)
    found = plan_hybrid(job, facts(table("words", 50_000, 0.01), table("all", 1000, 1.0)))
    ways = {route.parameter: route.way for route in found.schedule.routes.tables}
    assert ways == {"words": Placement.SHARDED, "all": Placement.DENSE}
    assert found.job.hardware.model_bytes == 10**6 + 1000 * 64 * 4 == found.chosen.dense_bytes
    assert found.proof.verdict == "proved"
    assert found.step_seconds > found.planned.recommendation.step_seconds
    assert set(found.to_json()["tables"]["costs"]["words"]) == {"dense", "gather", "sharded"}
    with pytest.raises(InputError, match="a gap leaves workers without common steps"):
        plan_hybrid(PlanRequest(cluster=job.cluster, gap=True), facts(table("words", 50_000, 0.01)))


def test_tables_give_slow_workers_equal_steps_per_round():
    slow = Hardware(inside=SLOW.inside, nic=SLOW.nic, model_bytes=1, compute=0.05, slowdown=((1, 5.0),))
    job = PlanRequest(cluster=Cluster.regular(2, 2, hardware=slow), effort=0.2, time_limit=3600.0)
    found = plan_hybrid(job, facts(table("words", 50_000, 0.01)))
    assert not found.schedule.strategy.tables_unsupported_reason()
    assert found.schedule.routes.apart


def test_design_model_writes_placements_and_a_valid_certificate(place, tmp_path):
    output = tmp_path / "schedule.json"
    words = ["design", "2x2", "--model", place + "build", "--set", "nic=25MB/s", "--effort", "0.2"]
    done = CliRunner().invoke(build_app(), [*words, "-o", str(output), "--json"])
    assert done.exit_code == 0, done.output
    schedule, planned = load_schedule(output), json.loads(done.stdout)
    assert schedule.route_of("words.weight").way is Placement.SHARDED
    assert "consensus" in confirm(schedule)
    assert prove(schedule)["one-owner"].status is Status.FACT
    tables = planned["tables"]
    assert tables["measured_steps"] == 2
    assert tables["reasons"][0].startswith("words.weight (20,000 x 32, 2.56 MB; a worker touches 0.01% of its rows")


def test_simulate_compares_tables_with_averaged_embeddings(tmp_path):
    words = TablePlacement(parameter="words", rows=50_000, columns=64)
    for name, payload in (("plain", Payload()), ("hybrid", Payload(tables=(words,)))):
        write_schedule(tmp_path / f"{name}.json", Schedule(name, CLUSTER, AllReduce(payload=payload)))
    files = [str(tmp_path / "plain.json"), str(tmp_path / "hybrid.json")]
    arguments = ["simulate", *files, "--model-bytes", "1MB", "--set", "nic=25MB/s", "--json"]
    done = CliRunner().invoke(build_app(), [*arguments, "--set", "touched=words:1%:2%:4%"])
    plain, hybrid = json.loads(done.stdout)["schedules"]
    assert hybrid["runs"] == "All-Reduce of gradients in every step, tables 1 sharded (Parallax)"
    assert plain["nic_bytes_per_step"] == pytest.approx(1.5 * (10**6 + 50_000 * 64 * 4))
    asked_for = 1_000 * (256 + 2 * 4) * 0.5 + 1_000 * 256 * 0.5
    assert hybrid["nic_bytes_per_step"] == pytest.approx(1.5 * 10**6 + asked_for)
    assert "does not say how much of 'words'" in str(CliRunner().invoke(build_app(), arguments).exception)


def test_max_norm_and_whole_tensor_optimizers_restrict_placements():
    model = torch.nn.Sequential(torch.nn.Embedding(8, 2, max_norm=1.0), torch.nn.Embedding(8, 2))
    touched = {name: RowAccess(1.0, 1.0, 1.0) for name in ("0.weight", "1.weight")}
    (shortened, plain), _ = tables_of(model, touched)
    assert (shortened.ways, plain.ways) == (
        (Placement.SHARDED,),
        (Placement.DENSE, Placement.GATHER, Placement.SHARDED),
    )
    (shortened, plain), _ = tables_of(model, touched, torch.optim.Adafactor(model.parameters()))
    assert (shortened.ways, plain.ways) == ((Placement.DENSE,), (Placement.DENSE, Placement.GATHER))
    assert plain.because.startswith("Adafactor looks at whole tensors")


def test_weight_used_outside_lookups_stays_dense():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.tags = torch.nn.Embedding(9, 2), torch.nn.EmbeddingBag(5, 2)

        def forward(self, words):
            hidden = self.words(words) + self.tags(words[:, None] % 5) + self.tags.weight.new_zeros(2)
            return torch.nn.functional.linear(hidden, self.words.weight)

    model = Tied()
    with OtherUses(model) as uses, torch.no_grad():
        model(torch.tensor([1, 7]))
    touched = {name: RowAccess(0.1, 0.1, 0.1) for name in ("words.weight", "tags.weight")}
    (words, tags), _ = tables_of(model, touched, other_uses=uses.found)
    assert (words.ways, words.because) == (
        (Placement.DENSE,),
        "forward() hands its weight to linear, too, which needs all rows",
    )
    assert len(tags.ways) == 3


@pytest.mark.parametrize(("text", "words"), [
    ("raise ValueError('no\\n data')", "--step {0}:step: importing {0} failed: ValueError: no data (line 1)"),
    ("import sys\nsys.exit(2)", "ended the program when it was executed; put what makes it a program under"),
    ("def stop(): ...", "has no function step; did you mean stop?"),
])  # fmt: skip
def test_script_that_cannot_be_executed_is_named(tmp_path, text, words):
    file = tmp_path / "train.py"
    file.write_text(text)
    with pytest.raises(InputError) as refusal:
        function_of(f"{file}:step", "--step")
    assert words.format(file) in str(refusal.value)


def test_script_is_executed_without_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["partreduce", "design", "2x2"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_train.py").write_text("seven = 7\n")
    (tmp_path / "later_train.py").write_text("eight = 8\n")
    (tmp_path / "train.py").write_text(
        "import sys\nfrom beside_train import seven\ngiven = sys.argv[1:]\n"
        "def step():\n    from later_train import eight\n    return [given, seven, eight]\n"
    )
    assert function_of(f"{tmp_path}/train.py:step", "--step")() == [[], 7, 8]
    assert sys.argv == ["partreduce", "design", "2x2"]
    assert sys.path[-1] == str(tmp_path)
