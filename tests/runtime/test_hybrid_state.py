"""What outlives a run with tables of their own route: state dicts with whole tables, checkpoints, other workers."""

from dataclasses import replace

import pytest
import torch

import preduce
from helpers.hybrid_runs import OPTIMIZERS, Case, Model, data_of, part_of, start, train
from preduce.runtime.sharding import whole
from preduce.topo.errors import InputError
from preduce.topo.strategies.routes import Way

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
CASES = {
    "adam": Case("adam", "2x2", dtype=torch.float64),
    "sparse momentum": Case("momentum", "4x1", sparse=True, dtype=torch.float64),
    "sparseadam": Case("sparseadam", "2x2", sparse=True, dtype=torch.float64),
    "gather": Case("adagrad", "2x2", way=Way.GATHER, dtype=torch.float64),
}


def train_more(case, model, optimizer, data):
    train(case, model, optimizer, data, preduce.clip_grad_norm_)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_device_and_other_workers_go_on_from_a_state_dict(ranks, tmp_path, monkeypatch, case):
    monkeypatch.setattr(whole, "SMALL_BYTES", 64)  # so that tables come in files
    path = tmp_path / "state.pt"

    def first_half(world):
        model, optimizer = start(case, world)
        train_more(case, model, optimizer, part_of(data_of(case), world.rank))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        optimizer.finish()
        if world.rank == 0:
            torch.save(state, path)

    ranks.run(4, first_half)
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
def test_a_checkpoint_goes_on_bit_for_bit_and_other_workers_take_its_model(ranks, tmp_path, case):
    def half(world):
        model, optimizer = start(case, world)
        data = part_of(data_of(case), world.rank)
        train_more(case, model, optimizer, data)
        preduce.save_checkpoint(optimizer, tmp_path)
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        train_more(case, model, optimizer, data)
        return kept, model.state_dict()

    def again(world):
        model, optimizer = start(case, world)
        assert preduce.load_checkpoint(optimizer, tmp_path).steps == 3
        train_more(case, model, optimizer, part_of(data_of(case), world.rank))
        return model.state_dict()

    two = replace(case, cluster="1x2")

    def others(world):
        model, optimizer = start(two, world)
        preduce.load_checkpoint(optimizer, tmp_path, other_run=True)
        return model.state_dict()

    kept, end = ranks.run(4, half)[0]
    resumed, moved = ranks.run(4, again)[0], ranks.run(2, others)[0]
    assert all(torch.equal(resumed[name], end[name]) for name in end)
    assert all(torch.equal(moved[name], kept[name]) for name in kept)


def test_only_worker_0_has_whole_tables_and_others_states_cannot_be_loaded(ranks):
    def act(world):
        model, _ = start(CASES["adam"], world)
        state = model.state_dict()
        try:
            model.load_state_dict(state)
        except InputError as error:
            return str(error)
        return ""

    said = ranks.run(4, act)
    assert said[0] == ""
    assert all("load the file that worker 0 saved" in text for text in said[1:])
    ranks.fresh()


def test_a_table_of_another_size_is_refused_even_where_it_has_the_size_of_a_shard(ranks):
    def run(world):
        model, _ = start(Case(), world)
        state = {name: torch.zeros(value.shape) for name, value in Model(Case()).state_dict().items()}
        state["words.weight"] = torch.zeros(model.words.weight.shape)
        with pytest.raises(InputError, match="×4, and the table is 29×4"):
            model.load_state_dict(state)

    ranks.run(4, run)
