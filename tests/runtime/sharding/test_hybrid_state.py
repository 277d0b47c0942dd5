"""State dicts with whole tables, checkpoints, and their use by other numbers of workers."""

import tempfile
import threading
from dataclasses import replace

import pytest
import torch

import partreduce
from helpers.hybrid_runs import OPTIMIZERS, Case, Model, data_of, part_of, start, train
from helpers.thread_ranks import on_ranks
from partreduce.errors import InputError
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.sharding import table_state as saved_tables
from partreduce.runtime.transport import waiting
from partreduce.strategies import Placement

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse invariant checks"), pytest.mark.usefixtures("small_blocks")]
CASES = {
    "adam": Case("adam", "2x2", dtype=torch.float64),
    "sparse momentum": Case("momentum", "4x1", sparse=True, dtype=torch.float64),
    "sparseadam": Case("sparseadam", "2x2", sparse=True, dtype=torch.float64),
    "gather": Case("adagrad", "2x2", way=Placement.GATHER, dtype=torch.float64),
}


def train_more(case, model, optimizer, data):
    train(case, model, optimizer, data, partreduce.clip_grad_norm_)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_state_dict_resumes_on_one_device_and_on_fewer_workers(ranks, tmp_path, monkeypatch, case):
    monkeypatch.setattr(saved_tables, "SMALL_BYTES", 64)  # so that tables are sent in files
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    path = tmp_path / "state.pt"

    def first_half(world):
        model, optimizer = start(case, world)
        train_more(case, model, optimizer, part_of(data_of(case), world.rank))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        optimizer.finish()
        if world.rank == 0:
            torch.save(state, path)

    ranks.run(4, first_half)
    assert list(files.glob("partreduce-table-*")) == [], "the files have no names any more"
    saved = torch.load(path, weights_only=True)

    plain = Model(case)
    inner = OPTIMIZERS[case.optimizer](plain.parameters())
    plain.load_state_dict(saved["model"])
    inner.load_state_dict(saved["optimizer"])
    words, bags, targets = data_of(case)
    train_more(case, plain, inner, (words, bags, targets / 2))

    two = replace(case, cluster="1x2")

    def second_half(world):
        model, optimizer = start(two, world)
        loaded = torch.load(path, weights_only=True, mmap=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        train_more(case, model, optimizer, part_of(data_of(case), world.rank, num_workers=2))
        return model.state_dict()

    for name, value in ranks.run(2, second_half)[0].items():
        assert (value - plain.state_dict()[name]).abs().max() < 1e-12, name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_checkpoint_resumes_bit_for_bit_and_loads_on_fewer_workers(ranks, tmp_path, case):
    def half(world):
        model, optimizer = start(case, world)
        data = part_of(data_of(case), world.rank)
        train_more(case, model, optimizer, data)
        partreduce.save_checkpoint(optimizer, tmp_path)
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        train_more(case, model, optimizer, data)
        return kept, model.state_dict()

    def again(world):
        model, optimizer = start(case, world)
        assert partreduce.load_checkpoint(optimizer, tmp_path).steps == 3
        train_more(case, model, optimizer, part_of(data_of(case), world.rank))
        return model.state_dict()

    two = replace(case, cluster="1x2")

    def others(world):
        model, optimizer = start(two, world)
        partreduce.load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        return model.state_dict()

    kept, end = ranks.run(4, half)[0]
    resumed, moved = ranks.run(4, again)[0], ranks.run(2, others)[0]
    assert all(torch.equal(resumed[name], end[name]) for name in end)
    assert all(torch.equal(moved[name], kept[name]) for name in kept)


@pytest.mark.parametrize("name", ["adagrad", "adam", "sparseadam"])
def test_rows_keep_their_optimizer_state_across_world_sizes(ranks, tmp_path, name):
    """4, 2 and 3 workers match one device whose dense layer starts with a fresh state whenever theirs does."""
    case = Case(name, "1x4", sparse=name == "sparseadam", dtype=torch.float64)
    plain, inner, runs = Model(case), None, ((4, 8), (2, 8), (3, 6))
    for number, (num_workers, samples) in enumerate(runs):
        before, inner = inner, OPTIMIZERS[name](plain.parameters())
        if before is not None:
            inner.state.update({table.weight: before.state[table.weight] for table in (plain.words, plain.bag)})
        words, bags, targets = (array[:, :, :samples] for array in data_of(case))
        train_more(case, plain, inner, (words, bags, targets / num_workers))

        def act(world, number=number, num_workers=num_workers):
            model, optimizer = start(replace(case, cluster=f"1x{num_workers}"), world)
            if number:
                partreduce.load_checkpoint(optimizer, tmp_path / str(number - 1), allow_different_run=True)
            train_more(case, model, optimizer, part_of(data_of(case), world.rank, num_workers))
            partreduce.save_checkpoint(optimizer, tmp_path / str(number))
            return model.state_dict()

        found = ranks.run(num_workers, act)[0]
    for key, value in found.items():
        assert (value - plain.state_dict()[key]).abs().max() < 1e-12, key


def test_another_optimizer_starts_with_fresh_state(ranks, tmp_path):
    def save(world):
        model, optimizer = start(Case("adagrad", "1x2"), world)
        train_more(Case(), model, optimizer, part_of(data_of(Case()), world.rank, num_workers=2))
        partreduce.save_checkpoint(optimizer, tmp_path)

    def load(world):
        model, optimizer = start(Case("adam", "1x2"), world)
        partreduce.load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        assert not optimizer.optimizer.state
        train_more(Case(), model, optimizer, part_of(data_of(Case()), world.rank, num_workers=2))
        return int(optimizer.optimizer.state[model.words.weight]["step"])

    ranks.run(2, save)
    assert ranks.run(2, load) == [3, 3]


def test_only_the_state_dict_of_worker_0_can_be_loaded(ranks):
    def act(world):
        model, _ = start(CASES["adam"], world)
        state = model.state_dict()
        model.load_state_dict(state)

    messages = ranks.texts(4, act, InputError)
    assert messages[0] == ""
    assert all("load the file that worker 0 saved" in text for text in messages[1:])


def test_state_dict_after_finish_waits_for_a_late_worker(ranks, monkeypatch):
    """As when worker 0 evaluates first; the others took it for a finished worker after 0.2 seconds."""
    checked, failure_reason = threading.Event(), Heartbeat.failure_reason
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "GLANCE_SECONDS", 0.0)

    def watch_failures(heartbeat, *given):
        reason = failure_reason(heartbeat, *given)
        if ended.is_set():
            checked.set()
        return reason

    ended = threading.Event()
    monkeypatch.setattr(Heartbeat, "failure_reason", watch_failures)

    def run(world):
        model, optimizer = start(CASES["adam"], world)
        optimizer.finish()
        if world.rank == 0:
            ended.set()
            assert checked.wait(60), "another worker checks whether worker 0 is alive"
        return model.state_dict()["words.weight"].is_meta

    assert ranks.run(4, run) == [False, True, True, True]


@on_ranks(4)
def test_table_of_another_size_or_of_a_shard_is_rejected(world):
    model, _ = start(Case(), world)
    state = {name: torch.zeros(value.shape) for name, value in Model(Case()).state_dict().items()}
    for rows, columns in (model.words.weight.shape, (29, 5)):
        state["words.weight"] = torch.zeros(rows, columns)
        with pytest.raises(InputError, match=f"is {rows}×{columns}, and the table is 29×4"):
            model.load_state_dict(state)
