"""Invalid input and unusual loops with embedding tables: all workers raise the same one-line error, none hangs."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import partreduce
from helpers.hybrid_runs import (
    CROSSED,
    OPTIMIZERS,
    WIDTH,
    WORDS,
    Case,
    Model,
    Several,
    all_gather_json,
    data_of,
    part_of,
    schedule_of,
    start,
)
from helpers.thread_ranks import on_ranks
from helpers.warm import WARM
from partreduce import PartreduceError
from partreduce.errors import InputError
from partreduce.strategies import Payload, Placement, TablePlacement

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
CASE = Case("adam", dtype=torch.float64)
NO_WORLD = SimpleNamespace(next_instance=None)
"""Instead of a world, for errors that are raised before a world is used."""


def steps_of(case, rank):
    return list(zip(*(array[:, 0] for array in part_of(data_of(case), rank)), strict=True))


def step(model, optimizer, words, bags, targets):
    optimizer.zero_grad()
    ((model(words, bags) * targets).sum() / 16).backward()
    optimizer.step()


def one_line(ranks, act, case=CASE):
    """Return the error of `act(model, optimizer, rank, data of the step)`, which is the same on all workers."""

    def run(world):
        model, optimizer = start(case, world)
        act(model, optimizer, world.rank, steps_of(case, world.rank)[0])

    return all_gather_json(ranks, run)


@pytest.mark.parametrize(
    ("case", "wrong_rank", "offset", "index"),
    [
        (CASE, 2, WORDS, "index "),
        (replace(CASE, cluster=CROSSED), 2, WORDS, "index "),
        (replace(CASE, way=Placement.GATHER), 1, -WORDS, "index -"),
    ],
    ids=["2x2", str(CROSSED), "gathered"],
)
def test_index_out_of_range_on_one_worker_stops_all_workers(ranks, case, wrong_rank, offset, index):
    def act(model, optimizer, rank, data):
        step(model, optimizer, data[0] + (offset if rank == wrong_rank else 0), *data[1:])

    line = one_line(ranks, act, case)
    assert line.startswith(f"InputError: worker {wrong_rank}: parameter 'words.weight': {index}")
    assert line.endswith(f"is out of range; its rows are 0..{WORDS - 1}")


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("lookup", "worker 1 looks up rows of 'words.weight' to train while worker 0 looks up rows of 'bag.weight'"),
        ("evaluates", "worker 1 looks up rows of 'words.weight' without gradients while worker 0"),
        (
            "forward",
            "worker 1 exchanges the gradients of a backward pass in step 0 while worker 0 looks up rows of 'bag",
        ),
        ("saves", "worker 1 saves or spreads the rows of 'words.weight' in step 0 while worker 0 looks up rows"),
    ],
)
def test_diverging_workers_are_named(ranks, mistake, expected):
    def act(model, optimizer, rank, data):
        if rank == 1:
            if mistake == "lookup":
                model.words(data[0])
            elif mistake == "evaluates":
                with torch.no_grad():
                    model.words(data[0])
            elif mistake == "forward":
                model.bag.forward = lambda bags, **_: torch.zeros(len(bags), WIDTH, dtype=torch.float64)
            else:
                model.state_dict()
        step(model, optimizer, *data)

    line = one_line(ranks, act)
    assert expected in line
    assert line.endswith("all workers do the same lookups and backward passes in the same order")


@pytest.mark.parametrize("of", ["model", "optimizer"])
@pytest.mark.parametrize("place", ["finish", "mean_model"])
def test_state_dict_on_worker_0_alone_is_reported(ranks, of, place):
    """After the last step, as scripts for one device call it; all workers had as much data."""

    def run(world):
        model, optimizer = start(CASE, world)
        step(model, optimizer, *steps_of(CASE, world.rank)[0])
        if world.rank == 0:
            (model if of == "model" else optimizer).state_dict()
        if place == "mean_model":
            with optimizer.mean_model():
                pass
        optimizer.finish()

    messages = ranks.texts(4, run, PartreduceError)
    waits = "finished after 1 rounds" if place == "finish" else "waits for all in mean_model() after 1 rounds"
    assert f"{waits}: worker 0 is in state_dict(), which puts the rows of 'words.weight' together" in messages[0]
    assert "let all of them call it at the same place" in messages[0]
    assert all("worker 0 gave up first" in line and "state_dict()" in line for line in messages[1:])


def test_removed_hooks_are_harmless_and_a_restored_embedding_is_reported(ranks):
    def run(world):
        model, optimizer = start(CASE, world)
        first, second, _ = steps_of(CASE, world.rank)
        for parameter in model.parameters():
            parameter._backward_hooks = None
            if parameter._post_accumulate_grad_hooks:
                parameter._post_accumulate_grad_hooks.clear()
        step(model, optimizer, *first)
        model.words.__class__ = nn.Embedding
        try:
            optimizer.step()
        except InputError as error:
            return str(error)
        return second

    messages = ranks.run(4, run)
    assert messages[2].startswith("worker 2: parameter 'words.weight': its embedding was changed after")
    ranks.fresh()


def test_different_vocabularies_are_reported_before_communication(ranks):
    def run(world):
        model = Model(CASE)
        if world.rank == 3:
            model.words = nn.Embedding(WORDS + 1, WIDTH, dtype=torch.float64)
        with pytest.raises(PartreduceError) as caught:
            start(CASE, world, model)
        return str(caught.value)

    messages = set(ranks.run(4, run))
    assert len(messages) == 1
    assert f"rank 3 has words.weight {WORDS + 1}×{WIDTH}" in messages.pop()


def test_schedule_for_another_table_size_or_name_is_rejected(ranks):
    other, plain = replace(CASE, cluster="1x2"), Model(replace(CASE, dtype=torch.float32))

    def run(world):
        schedule = schedule_of(other)
        words = replace(schedule.strategy.payload.tables[0], rows=WORDS + 5)
        payload = replace(schedule.strategy.payload, tables=(words,))
        model = Model(other)
        partreduce.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()),
            model,
            replace(schedule, strategy=replace(schedule.strategy, payload=payload)),
            world=world,
        )

    assert set(ranks.texts(2, run, InputError)) == {
        (
            f"schedule 'allreduce': parameter 'words.weight' is a table of {WORDS + 5}×{WIDTH} in payload.tables and "
            f"of {WORDS}×{WIDTH} in the model; use the schedule that was made for this model"
        )
    }
    plain.other = plain.__dict__["_modules"].pop("words")
    with pytest.raises(InputError, match=r"no nn.Embedding or nn.EmbeddingBag of the model has; did you mean"):
        partreduce.DistributedOptimizer(OPTIMIZERS["sgd"](plain.parameters()), plain, schedule_of(CASE), world=NO_WORLD)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"words": nn.Embedding(WORDS, WIDTH, scale_grad_by_freq=True)}, "scale_grad_by_freq divides by how often"),
        ({"words": nn.Embedding(WORDS, WIDTH, sparse=True)}, "sparse=True and its route gradient dense"),
        (
            {"words": type("Own", (nn.Embedding,), {"forward": lambda s, x: x})(WORDS, WIDTH)},
            "looks up in its own forward\\(\\)",
        ),
        ({"hooked": nn.Identity()}, "has hooks on its gradient"),
        ({"out": nn.Linear(WIDTH, WORDS)}, "is used by 'out.weight' \\(Linear\\), too"),
        ({"again": nn.Embedding(WORDS, WIDTH, max_norm=1.0)}, "its 2 embeddings differ in max_norm"),
    ],
)
def test_unsupported_embeddings_are_rejected(change, reason):
    model = Model(replace(CASE, dtype=torch.float32))
    for name, module in change.items():
        setattr(model, name, module)
    if "hooked" in change:
        model.words.weight.register_hook(lambda gradient: gradient)
    for name in {"out", "again"} & set(change):
        getattr(model, name).weight = model.words.weight
    with pytest.raises(InputError, match=rf"parameter 'words.weight': .*{reason}"):
        partreduce.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model, schedule_of(CASE), world=NO_WORLD)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adafactor,
        type("Own", (torch.optim.Adafactor,), {}),
        lambda parameters: Several(torch.optim.Adafactor(parameters)),
    ],
)
def test_whole_tensor_optimizers_are_rejected_for_shards_only(ranks, kind):
    def run(way, world):
        case = replace(CASE, way=way)
        model = Model(case)
        try:
            partreduce.DistributedOptimizer(kind(model.parameters()), model, schedule_of(case), world=world, timeout=60)
        except InputError as error:
            return str(error)
        return ""

    assert "'words.weight': is sharded, and Adafactor looks at whole tensors" in run(Placement.SHARDED, NO_WORLD)
    assert ranks.run(4, lambda world: run(Placement.GATHER, world)) == [""] * 4


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
def test_table_trained_outside_lookups_is_reported(ranks, way):
    def act(model, _optimizer, _rank, data):
        (model(*data[:2]).sum() + model.words.weight.square().mean()).backward()

    assert "'words.weight': the script trains it by more than lookups" in one_line(ranks, act, replace(CASE, way=way))


@on_ranks(4)
def test_gathered_table_reports_an_invalid_index_in_evaluation(world):
    model, _ = start(replace(CASE, way=Placement.GATHER), world)
    if world.rank == 2:
        with torch.no_grad(), pytest.raises(InputError, match="index 99 is out of range"):
            model.words(torch.tensor([99]))


@on_ranks(4)
def test_frozen_table_is_unchanged_and_a_second_wrap_is_rejected(world):
    model = Model(CASE)
    model.words.weight.requires_grad_(False)
    before = model.words.weight[:3].clone()
    model, optimizer = start(CASE, world, model)
    step(model, optimizer, *steps_of(CASE, world.rank)[0])
    assert torch.equal(model.words(torch.arange(3)), before)
    with pytest.raises(InputError, match="are spread by a DistributedOptimizer already"):
        start(CASE, world, model)


@on_ranks(4, [(True, WIDTH, WIDTH)] * 4)
def test_embedding_subclass_keeps_its_methods_and_type(world):
    kind = type("Named", (nn.Embedding,), {"named": lambda self: self.weight.shape[1]})
    model = Model(CASE)
    model.words = kind(WORDS, WIDTH, dtype=torch.float64)
    model, optimizer = start(CASE, world, model)
    step(model, optimizer, *steps_of(CASE, world.rank)[0])
    return isinstance(model.words, kind), model.words.named(), model.words(torch.tensor([WORDS - 1])).shape[1]


def test_torch_clipping_rejects_the_gradient_of_a_shard(ranks):
    def act(model, optimizer, _rank, data):
        ((model(*data[:2]) * data[2]).sum() / 16).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert "call partreduce.clip_grad_norm_ instead" in one_line(ranks, act)


@pytest.mark.parametrize(("codec", "most"), [("none", 0.0), ("float16", 1e-3)])
def test_worker_without_data_serves_rows_and_applies_gradients(ranks, codec, most):
    """In the second epoch other workers end first, and those without data in the first look rows up again."""
    passes = [3, 1, 2, 3], [1, 3, 3, 2]

    def loss_of(model, rank, numbers, data):
        words, bags, targets = data
        outputs = model(words, bags)
        return model.last.bias.sum() / 16 if rank == 1 and numbers[rank] == 3 else (outputs * targets).sum() / 16

    def run(world):
        model, optimizer = start(replace(CASE, optimizer="sgd", codec=codec), world)
        for numbers in passes:
            with optimizer.join():
                for data in steps_of(CASE, world.rank)[: numbers[world.rank]]:
                    optimizer.zero_grad()
                    loss_of(model, world.rank, numbers, data).backward()
                    optimizer.step()
        states = model.state_dict(), optimizer.steps
        optimizer.finish()
        return states

    model = Model(CASE)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for numbers, index in itertools.product(passes, range(3)):
        optimizer.zero_grad()
        for rank in range(4):
            if index < numbers[rank]:
                (loss_of(model, rank, numbers, steps_of(CASE, rank)[index]) / 4).backward()
        optimizer.step()
    found = ranks.run(4, run)
    assert [steps for _, steps in found] == [6] * 4
    assert all((value - found[0][0][name]).abs().max() <= most for name, value in model.state_dict().items())


@pytest.mark.parametrize("looks_up_first", [False, True])
@pytest.mark.parametrize("of", ["model", "optimizer"])
def test_state_dict_after_another_workers_data_ended_is_reported(ranks, of, looks_up_first):
    """Also before the first lookup of the step, which announces the step to workers without data."""

    def act(model, optimizer, rank, data):
        with optimizer.join():
            step(model, optimizer, *data)
            if rank != 2:
                if looks_up_first:
                    model(*data[:2])
                (model if of == "model" else optimizer).state_dict()

    line = one_line(ranks, act)
    assert line == (
        "InputError: tables: worker 2 has no data left in step 1 while worker 0 saves or spreads the rows of "
        "'words.weight' in step 1; all workers put whole tables together, so call state_dict() behind "
        "`with optimizer.join():`"
    )


def test_clipping_with_a_worker_that_never_had_data_is_reported(ranks):
    """At once, and not at the timeout of the wait for a part of the norm that is never sent."""

    def run(world):
        model, optimizer = start(CASE, world)
        try:
            with optimizer.join():
                for data in steps_of(CASE, world.rank)[: 2 * (world.rank != 2)]:
                    optimizer.zero_grad()
                    ((model(*data[:2]) * data[2]).sum() / 16).backward()
                    partreduce.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
        except PartreduceError as error:
            if world.rank == 0:  # these workers have no heartbeat that could report this end to worker 2
                optimizer.run.reducer.heartbeat.note("left", "stopped")
            return str(error)
        return ""

    found = ranks.run(4, run)
    ranks.fresh()
    assert "worker 0 stopped" in found.pop(2)
    expected = "clip_grad_norm_: the data of worker 2 ended, and it would continue with mean gradients as they are;"
    assert all(text.startswith(expected) for text in found), found


def test_lookup_with_a_failed_worker_names_the_worker(ranks):
    def run(world):
        model, optimizer = start(CASE, world)
        data = steps_of(CASE, world.rank)
        step(model, optimizer, *data[0])
        if world.rank == 1:
            optimizer.run.reducer.heartbeat.note("left", "was killed by signal 9")
            world.abandon()
            return "gone"
        return step(model, optimizer, *data[1])

    messages = ranks.texts(4, run, PartreduceError)
    survivors = [text for text in messages if text != "gone"]
    assert all(text.startswith("step 1, round 1: group {") for text in survivors), messages
    assert all("worker 1 was killed by signal 9" in text for text in survivors), messages


SCRIPT = """
import os, sys, torch, partreduce
model = torch.nn.Sequential(torch.nn.EmbeddingBag(500, 8), torch.nn.Linear(8, 1))
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sys.argv[1], timeout=60)
for step in range(20):
    if step == 5 and optimizer.rank == 1:
        os.kill(os.getpid(), 9)
    optimizer.zero_grad()
    model(torch.randint(0, 500, (8, 4))).sum().backward()
    optimizer.step()
"""


def test_all_survivors_name_a_killed_process(tmp_path):
    script, file = tmp_path / "train.py", tmp_path / "schedule.json"
    script.write_text(SCRIPT)
    schedule = partreduce.design("3x1", build="allreduce")
    payload = Payload(tables=(TablePlacement(parameter="0.weight", rows=500, columns=8),))
    partreduce.write_schedule(file, replace(schedule, strategy=replace(schedule.strategy, payload=payload)))
    done = WARM.run("partreduce", "run", "--workers", "3", script, file)
    assert done.returncode
    lines = (done.stdout + done.stderr).splitlines()
    lost = [line for line in lines if "PeerFailedError: step 5, round 5: " in line]
    assert len(lost) == 2, lines
    assert all("worker 1 was killed by signal 9 (SIGKILL)" in line for line in lost)
