"""Training with embedding tables on 4 workers matches one device that has the whole batch."""

from dataclasses import fields

import pytest
import torch

import partreduce
from helpers.hybrid_runs import (
    CROSSED,
    OPTIMIZERS,
    WIDTH,
    WORDS,
    Case,
    Model,
    data_of,
    on_one_device,
    over_workers,
    part_of,
    schedule_of,
    start,
    train,
)
from partreduce import Cluster, Hardware, Link
from partreduce.errors import InputError
from partreduce.runtime.sharding.table_collectives import Wire
from partreduce.strategies import Placement

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse invariant checks"), pytest.mark.usefixtures("small_blocks")]

EXACT = [
    Case("sgd", "2x2", dtype=torch.float64),
    Case("momentum", CROSSED, sparse=True, partitions=7, moving=True, dtype=torch.float64),
    Case("sgd", CROSSED, way=Placement.GATHER, mode="mean", dtype=torch.float64),
    Case("sgd", "4x1", sparse=True, mode="mean", padding=3, dtype=torch.float64),
    Case("momentum", "2x2", sparse=True, coalesces=False, twice=True, backwards=2, dtype=torch.float64),
    Case("momentum", "4x1", mode="max", partitions=7, moving=True, dtype=torch.float64),
    Case("sgd", "3,1", hosts=(2, 0), weighted=True, moving=True, dtype=torch.float64),
    Case("momentum", "2x2", way=Placement.GATHER, sparse=True, padding=0, backwards=2, dtype=torch.float64),
    Case("sgd", "4x1", way=Placement.GATHER, mode="max", twice=True, dtype=torch.float64),
    Case("sgd", "2x2", average=False, sparse=True, dtype=torch.float64),
    Case("momentum", "2x2", average_dense=False, dtype=torch.float64),
]
CLOSE = [
    Case("adagrad", "2x2", sparse=True, clip=0.25),
    Case("adagrad", "4x1", moving=True, max_norm=1.0),
    Case("adam", "2x2", clip=0.25, moving=True, padding=5),
    Case("adam", "2x2", way=Placement.GATHER, clip=0.25),
    Case("adamw", "4x1", clip=0.25, mode="mean"),
    Case("adamw", "3,1", hosts=(3, 1), partitions=5, coalesces=True),
    Case("sparseadam", "2x2", sparse=True, padding=2, moving=True),
    Case("sparseadam", "4x1", sparse=True, way=Placement.GATHER),
    Case("sgd", "2x2", sparse=True, clip=0.25, max_norm=1.0, coalesces=False),
    Case("adagrad", "4x1", average=False, average_dense=False, clip=0.25),
]


def id_of(case):
    """Return the fields of a case that differ from the default, as a test id."""
    plain = Case()
    return "-".join(str(v) for f in fields(case) if (v := getattr(case, f.name)) != getattr(plain, f.name)) or "plain"


def differences(case, ranks):
    """Return the largest difference from one device by name of the parameter, moving average or output."""
    (model, moving, outputs), states = on_one_device(case), over_workers(case, ranks)
    wanted = model.state_dict()
    found = {name: float((value - wanted[name]).abs().max().detach()) for name, value in states[0][0].items()}
    if moving is not None:
        averages = moving.module.state_dict()
        found |= {f"moving {n}": float((v - averages[n]).abs().max()) for n, v in states[0][1].items()}
    return found | {"outputs": float((torch.cat([state[2] for state in states]) - outputs).abs().max())}


@pytest.mark.parametrize("case", EXACT, ids=id_of)
def test_dyadic_values_match_one_device_bit_for_bit(ranks, case):
    assert set(differences(case, ranks).values()) == {0.0}


@pytest.mark.parametrize("case", CLOSE, ids=id_of)
def test_optimizers_and_clipping_match_one_device(ranks, case):
    found = differences(case, ranks)
    assert max(found.values()) < 2e-6, found


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (Case("adagrad", "3,1", hosts=(2, 0), weighted=True, moving=True, max_norm=1.0, codec="float16"), 0.01),
        (Case("sparseadam", "2x2", sparse=True, padding=2, codec="int8"), 0.05),
        (Case("momentum", "2x2", way=Placement.GATHER, clip=0.25, backwards=2, codec="bfloat16"), 0.05),
    ],
    ids=lambda case: id_of(case) if isinstance(case, Case) else "",
)
def test_training_with_a_codec_stays_close_to_one_device(ranks, case, most):
    found = differences(case, ranks)
    assert 0 < max(found.values()) < most, found


def test_training_changes_the_tables():
    before, after = Model(Case()), on_one_device(Case())[0]
    assert all(not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True))


def test_parallelize_measures_touched_rows_and_uses_the_planned_placement(ranks):
    case = Case("sgd", dtype=torch.float64)
    links = Hardware(inside=Link.of_bandwidth(5e9, 1e-5), nic=Link.of_bandwidth(25e6, 1e-4))

    def act(world):
        model = Model(case)
        data = part_of(data_of(case), world.rank)
        batches = list(zip(*(array[:, 0] for array in data), strict=True))
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        model, optimizer = partreduce.parallelize_embeddings(
            model, optimizer, Cluster.regular(2, 2, hardware=links), batches=iter(batches), world=world
        )
        train(case, model, optimizer, data, None)
        return optimizer.schedule.strategy.payload, optimizer.reasons, model.state_dict()

    results = ranks.run(4, act)
    payload, reasons, state = results[0]
    assert all(other[0] == payload and other[1] == reasons for other in results)
    words, bags, _ = (part[:, 0] for part in data_of(case))
    assert [route.parameter for route in payload.tables] == ["words.weight", "bag.weight"]
    touched = sum(len(set(step.flatten().tolist())) for step in words) / 3 / WORDS
    assert f"all {touched:.2%})" in reasons[0]
    assert len(bags) == 3
    wanted = on_one_device(case)[0].state_dict()
    assert all((state[name] - wanted[name]).abs().max() < 1e-12 for name in wanted)


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
def test_tables_start_with_the_values_of_worker_0(ranks, way):
    case = Case(way=way, dtype=torch.float64)

    def act(world):
        model = Model(case)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + world.rank).add_(world.rank)
        model, _ = start(case, world, model)
        words, bags, _ = data_of(case)
        with torch.no_grad():
            return model.words(words), model.bag(bags.view(-1, 2)), model.state_dict()

    plain, (words, bags, _) = Model(case), data_of(case)
    results = ranks.run(4, act)
    for rows, sums, _ in results:
        assert torch.equal(rows, plain.words(words))
        assert torch.equal(sums, plain.bag(bags.view(-1, 2)))
    assert all(torch.equal(value, results[0][2][name]) for name, value in plain.state_dict().items())


def test_meta_tables_are_initialized_on_their_owners(ranks):
    case = Case("adagrad", padding=3)

    def act(world):
        model = Model(case)
        with torch.device("meta"):
            model.words = torch.nn.Embedding(WORDS, WIDTH, padding_idx=3)
        inner = torch.optim.Adagrad(model.parameters(), lr=0.25, initial_accumulator_value=0.5)
        optimizer = partreduce.DistributedOptimizer(inner, model, schedule_of(case), world=world, timeout=60)
        assert torch.equal(inner.state[model.words.weight]["sum"], torch.full(model.words.weight.shape, 0.5))
        train(case, model, optimizer, part_of(data_of(case), world.rank), None)
        return len(model.words.weight), model.state_dict()["words.weight"]

    results = ranks.run(4, act)
    whole = results[0][1]
    assert [rows for rows, _ in results] == [8, 7, 7, 7]
    assert torch.equal(whole[3], torch.zeros(WIDTH))
    assert whole.shape == (WORDS, WIDTH)
    assert len(whole.unique(dim=0)) == WORDS


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
@pytest.mark.parametrize("using", [{"build": "node-then-all"}, {"build": "allreduce", "every": 2}])
def test_tables_match_a_replay_when_groups_average_parameters(ranks, using):
    case = Case("sgd", dtype=torch.float64, using=using)
    schedule = schedule_of(case)

    def act(world):
        model, optimizer = start(case, world)
        train(case, model, optimizer, part_of(data_of(case), world.rank), None)
        return model.state_dict()

    models = [Model(case) for _ in range(4)]
    words, bags = models[0].words, models[0].bag
    for model in models:
        model.words, model.bag = words, bags  # one set of tables, four dense layers
    tables = [words.weight, bags.weight]
    for step in range(3):
        for weight in tables:
            weight.grad = None
        for rank, model in enumerate(models):
            model.last.zero_grad()
            inputs = [array[step, 0] for array in part_of(data_of(case), rank)]
            ((model(*inputs[:2]) * inputs[2]).sum() / 16).backward()
        with torch.no_grad():
            for weight in tables:
                weight.sub_(0.5 * weight.grad / 4)
            for parameter in (one for model in models for one in model.last.parameters()):
                parameter.sub_(0.5 * parameter.grad)
            if (step + 1) % schedule.steps_per_round_of(0) == 0:
                average(models, schedule, step // schedule.steps_per_round_of(0))
    found = ranks.run(4, act)
    assert torch.allclose(found[0]["words.weight"], words.weight, rtol=0, atol=1e-12)
    assert torch.allclose(found[0]["bag.weight"], bags.weight, rtol=0, atol=1e-12)
    assert all(torch.allclose(s["last.weight"], m.last.weight, atol=1e-12) for s, m in zip(found, models, strict=True))


def average(models, schedule, round_):
    """Average the dense layers over the groups of one round."""
    before = [[parameter.clone() for parameter in model.last.parameters()] for model in models]
    for rank, model in enumerate(models):
        group = schedule.group_of(rank, round_)
        if group is None:
            continue
        for place, parameter in enumerate(model.last.parameters()):
            mean = sum(before[member][place] for member in group.members) / len(group.members)
            parameter.add_(float(group.relaxation) * (mean - parameter))


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
@pytest.mark.parametrize("using", [{}, {"build": "node-then-all"}], ids=["gradients", "parameters"])
def test_evaluation_after_the_last_step_adds_no_step(ranks, using):
    case = Case("adam", dtype=torch.float64, using=using)

    def act(world):
        model, optimizer = start(case, world)
        data = part_of(data_of(case), world.rank)
        with optimizer.join():
            train(case, model, optimizer, [array[: 2 + (world.rank == 1)] for array in data], None)
            if world.rank == 1:
                with torch.no_grad():
                    model(data[0][0, 0], data[1][0, 0])
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.finish()
        return optimizer.steps, before, model.state_dict()

    steps, before, after = ranks.run(4, act)[0]
    assert steps == 3
    names = [name for name in before if not (using and name.startswith("last"))]  # finish() takes the mean of these
    assert all(torch.equal(before[name], after[name]) for name in names)


@pytest.mark.parametrize("clips", ["no", "first", "after the average"])
def test_clipping_adds_a_collective_only_after_averaging(ranks, monkeypatch, clips):
    """The norm is part of the message that ends the backward passes, or a message after it once that has been sent."""
    case, calls = Case("sgd"), [[] for _ in range(4)]
    meet = Wire.meet

    def count_calls(wire, group, call, *arguments, **named):
        if group is not wire.node:
            calls[wire.rank].append(call.kind.name)
        return meet(wire, group, call, *arguments, **named)

    monkeypatch.setattr(Wire, "meet", count_calls)

    def act(world):
        model, optimizer = start(case, world)
        words, bags, targets = (array[0, 0] for array in part_of(data_of(case), world.rank))
        calls[world.rank].clear()
        ((model(words, bags) * targets).sum() / 16).backward()
        if clips == "after the average":
            optimizer.average_gradients()
        norm = partreduce.clip_grad_norm_(model.parameters(), 0.25) if clips != "no" else None
        optimizer.step()
        return norm

    norms = ranks.run(4, act)
    assert all(norm == norms[0] for norm in norms)
    alone = ["NORM"] if clips == "after the average" else []
    assert calls == [["LOOKUP", "LOOKUP", "REDUCE", "STEP", *alone]] * 4


def test_clip_grad_norm_supports_sparse_gradients_on_one_process():
    case = Case("sgd", sparse=True, dtype=torch.float64)
    model = Model(case)
    words, bags, _ = (array[0, 0] for array in data_of(case))
    model(words, bags).sum().backward()
    dense = torch.cat([parameter.grad.to_dense().reshape(-1) for parameter in model.parameters()])
    assert torch.allclose(partreduce.clip_grad_norm_(model.parameters(), 0.25), dense.norm(), rtol=1e-14)
    with pytest.raises(InputError, match="norm_type is 0"):
        partreduce.clip_grad_norm_(model.parameters(), 0.25, 0)


INF = float("inf")


@pytest.mark.parametrize("largest", ["dense", "rows"])
@pytest.mark.parametrize("norm_type", [0.5, 1.0, 2.0, 3.0, INF])
def test_norm_counts_every_row_and_dense_gradient_once(ranks, norm_type, largest):
    """A worker may own no row, and gradients keep their precision."""
    case = Case("sgd", dtype=torch.float64, hosts=(0, 1), partitions=2)

    def norm(model, data):
        words, bags, targets = (array[0, 0] for array in data)
        with torch.no_grad():
            if largest == "dense":
                model.words.weight.mul_(-64)
                model.bag.weight.mul_(-64)
            else:
                model.last.weight.mul_(-64)
        ((model(words, bags) * targets).sum() / 16).backward()
        return partreduce.clip_grad_norm_(model.parameters(), 0.25, norm_type)

    whole, (words, bags, targets) = Model(case), data_of(case)
    wanted = norm(whole, (words, bags, targets / 4))

    def act(world):
        model, _ = start(case, world)
        return norm(model, part_of(data_of(case), world.rank)), model.last.weight.grad

    results = ranks.run(4, act)
    assert all(one == results[0][0] for one, _ in results)
    assert results[0][0].dtype == torch.float64
    assert torch.allclose(results[0][0], wanted, rtol=1e-12, atol=0)
    assert all(torch.allclose(gradient, whole.last.weight.grad, rtol=1e-12, atol=0) for _, gradient in results)


@pytest.mark.parametrize(
    ("gradients", "wanted"),
    [
        ([[-5.0, 1.0], [3.0]], 5.0),
        ([[1.0, 2.0], [-7.0]], 7.0),
        ([[1.0, float("nan")], [3.0]], float("nan")),
        ([[1.0, 2.0], [float("nan")]], float("nan")),
        ([[1.0, -INF], [3.0]], INF),
        ([[0.0, 0.0], [0.0]], 0.0),
        ([[], [3.0]], 3.0),
        ([[2.0], []], 2.0),
    ],
)
def test_infinity_norm_of_sparse_and_dense_gradients(gradients, wanted):
    dense, rows = (torch.tensor(values, dtype=torch.float64) for values in gradients)
    weight = torch.nn.Parameter(torch.zeros_like(dense))
    weight.grad = dense
    table = torch.nn.Parameter(torch.zeros(4, 1, dtype=torch.float64))
    table.grad = torch.sparse_coo_tensor(torch.arange(len(rows)).view(1, -1), rows.view(-1, 1), (4, 1))
    norm = partreduce.clip_grad_norm_([weight, table], 0.25, INF)
    torch.testing.assert_close(norm, torch.tensor(wanted, dtype=torch.float64), equal_nan=True)
