"""Errors of `partreduce.parallelize_embeddings` and after training: one line with the remedy, on all workers."""

import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

import partreduce
from helpers.hybrid_runs import OPTIMIZERS, WIDTH, WORDS, Case, Model, data_of, part_of, start
from partreduce import PartreduceError
from partreduce.errors import PeerFailedError
from partreduce.runtime.sharding.row_access import gather_texts
from partreduce.strategies import PartialAllReduce

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
CASE = Case("sgd", dtype=torch.float64)


class Plain(nn.Module):
    """A model without a trainable table."""

    def __init__(self, *, frozen=False):
        super().__init__()
        self.last = nn.Linear(WIDTH, 1)
        if frozen:
            self.words = nn.Embedding.from_pretrained(torch.zeros(WORDS, WIDTH))


def batches_of(rank):
    return [list(parts) for parts in zip(*(array[:, 0] for array in part_of(data_of(CASE), rank)), strict=True)]


def results_of(ranks, act):
    """Return the result or the error of `act(world)` on each of four workers."""
    return ranks.texts(4, act, PartreduceError)


def wrap_by_parallelize(model, world, batches, where="2x2", **settings):
    optimizer = OPTIMIZERS["sgd"](one for one in model.parameters() if one.requires_grad)
    return partreduce.parallelize_embeddings(
        model, optimizer, where, batches=batches, world=world, **{"timeout": 60} | settings
    )


def test_all_workers_report_a_worker_without_the_table(ranks):
    def act(world):
        return wrap_by_parallelize(Plain() if world.rank == 2 else Model(CASE), world, batches_of(world.rank))

    (line,) = set(results_of(ranks, act))
    assert line == (
        f"parallelize: parameter 'words.weight' is no embedding that is trained on worker 2 and a table of {WORDS} "
        "rows on worker 0; give all workers the same model"
    )


def test_all_other_workers_report_a_missing_worker(ranks):
    def act(world):
        return "late" if world.rank == 1 else wrap_by_parallelize(Model(CASE), world, batches_of(world.rank), timeout=3)

    line, late, *others = results_of(ranks, act)
    assert late == "late"
    assert others == [line] * 2
    assert line == "parallelize: worker 1 did not answer within 3 s"


def test_missing_workers_share_one_deadline(ranks):
    has_raised = threading.Event()

    def act(world):
        if world.rank in (1, 2):
            return ""
        assert world.rank or has_raised.wait(60)
        try:
            return gather_texts(world, "one deadline", "mine", timeout=0.5)
        finally:
            has_raised.set()

    messages = results_of(ranks, act)
    assert messages == ["parallelize: workers 1, 2 did not answer within 0.5 s", "", "", ["mine"]]


def test_cluster_of_another_size_is_rejected(ranks):
    (line,) = set(
        results_of(ranks, lambda world: wrap_by_parallelize(Model(CASE), world, batches_of(world.rank), "1x3"))
    )
    assert line.startswith("schedule 'allreduce': is for 3 workers and this run has 4")


def test_batch_rejected_by_forward_suggests_the_forward_argument(ranks):
    def dicts(rank):
        return [dict(zip(("words", "bags", "label"), batch, strict=True)) for batch in batches_of(rank)]

    (line,) = set(results_of(ranks, lambda world: wrap_by_parallelize(Model(CASE), world, dicts(world.rank))))
    assert "worker 0: parallelize: forward() of Model does not take a sample batch (" in line
    assert "'label'" in line
    assert line.endswith("say how it is called: forward=lambda model, batch: ...")

    def act(world):
        options = {"forward": lambda model, batch: model(batch["words"], batch["bags"])}
        return wrap_by_parallelize(Model(CASE), world, dicts(world.rank), **options)[1].reasons

    assert all("words.weight" in texts[0] for texts in results_of(ranks, act))


def test_frozen_embeddings_need_neither_tables_nor_batches(ranks):
    def act(world):
        return wrap_by_parallelize(Plain(frozen=True), world, None)[1].schedule.strategy.payload.tables

    assert results_of(ranks, act) == [()] * 4


@pytest.mark.parametrize("quorum", [3, "solo"])
def test_partial_all_reduce_supports_only_dense_tables(ranks, quorum):
    schedule = partreduce.design("2x2", build="allreduce")
    schedule = replace(schedule, strategy=replace(schedule.strategy, sync=PartialAllReduce(quorum=quorum)))

    def act(world, rows):
        model = Plain()
        model.words = nn.Embedding(rows, WIDTH)
        batches = [torch.arange(32)] * 2
        options = {"forward": lambda model, batch: model.last(model.words(batch)).sum()}
        try:
            model, optimizer = wrap_by_parallelize(model, world, batches, schedule, **options)
        except PartreduceError as error:
            return str(error)
        for batch in batches:
            optimizer.zero_grad()
            options["forward"](model, batch).backward()
            optimizer.step()
        optimizer.finish()
        return optimizer.reasons, model.words.weight.tolist()

    first, *others = ranks.run(4, lambda world: act(world, 32))
    assert all(other == first for other in others)
    assert "words.weight (32 x 4" in first[0][0]
    assert ": dense, " in first[0][0]
    assert first[0][1] == "these are prices of synchronous rounds, without sync.partial"
    (line,) = set(ranks.run(4, lambda world: act(world, 10**6)))
    assert "workers with sync.partial have no common steps" in line


@pytest.mark.parametrize("text", ["5", "null", "[" * 100_000, '{"format": "partreduce.schedule", "version": 1}'])
def test_file_that_is_neither_schedule_nor_cluster_is_rejected(tmp_path, text):
    file = tmp_path / "place.json"
    file.write_text(text)
    with pytest.raises(PartreduceError, match=r"place\.json: "):
        partreduce.parallelize_embeddings(Plain(), torch.optim.SGD(Plain().parameters()), file)


def test_lookup_on_one_worker_after_finish_is_reported(ranks):
    def run(world):
        model, optimizer = start(CASE, world)
        optimizer.finish()
        if world.rank:
            world.abandon()
            return None
        with torch.no_grad(), pytest.raises(PeerFailedError) as caught:
            model.words(torch.tensor([1]))
        return str(caught.value)

    line = ranks.run(4, run)[0]
    ranks.fresh()
    assert "finished after 0 rounds: all workers look up and save the rows of tables together, after finish()" in line
