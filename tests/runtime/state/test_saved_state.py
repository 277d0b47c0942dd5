"""What a checkpoint file restores, and which files are refused before the model changes; without a launcher."""

import json
from collections import Counter, deque
from pathlib import Path

import numpy as np
import pytest
import torch

from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import InputError
from partreduce.runtime.state import sharded_checkpoint
from partreduce.runtime.state.saved_state import PAIRS, StateFile, decode_keys, encode_keys, json_of

SCHEDULE = Schedule("alone", Cluster.regular(1, 2), st.AllReduce())


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def make(*groups):
    """Two layers under SGD with momentum; a group is the layers whose parameters it has, and later ones are added."""
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    model = torch.nn.Sequential(*layers)
    first, *rest = [[p for layer in group for p in layers[layer].parameters()] for group in groups]
    inner = torch.optim.SGD(first, lr=0.1, momentum=0.9)
    for group in rest:
        inner.add_param_group({"params": group, "lr": 0.2})
    return model, inner


def wrap(model, inner):
    return DistributedOptimizer(inner, model, SCHEDULE)


def train(model, optimizer, steps):
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def test_load_with_other_parameter_groups_raises_and_changes_nothing(tmp_path):
    """Groups that the new optimizer lacked were once dropped in silence, with their momentum."""
    model, inner = make([0], [1])
    optimizer = wrap(model, inner)
    train(model, optimizer, 3)
    save_checkpoint(optimizer, tmp_path)

    for groups, words in (
        ([[0, 1]], "1 parameter group, .* file has 2; call add_param_group before loading"),
        ([[0, 1], []], "parameter group 0 .* 4 parameters, .* file has 2;"),
    ):
        other, inner = make(*groups)
        later = wrap(other, inner)
        before = [parameter.clone() for parameter in other.parameters()]
        with pytest.raises(InputError, match=f"^load_checkpoint: .*{words}") as caught:
            load_checkpoint(later, tmp_path)
        assert "\n" not in str(caught.value)
        assert all(map(torch.equal, other.parameters(), before))

    same, inner = make([0], [1])
    again = wrap(same, inner)
    load_checkpoint(again, tmp_path)
    train(same, again, 1)
    assert again.param_groups[1]["lr"] == 0.2
    assert float(again.state[same[1].weight]["momentum_buffer"].mean()) == pytest.approx(3.439)


@pytest.mark.parametrize("change", ["missing", "another shape"])
def test_restore_checks_all_tensors_before_it_changes_one(change):
    model, inner = make([0, 1])
    optimizer = wrap(model, inner)
    file = StateFile(optimizer.engine)
    tensors, facts = file.collect()
    tensors = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    last = "model/1.bias"
    if change == "missing":
        del tensors[last]
    else:
        tensors[last] = torch.zeros(3)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(InputError, match=rf"{last} is missing in the file or has another shape"):
        file.restore(tensors, facts)
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("order", [[False, True], [True, False]])
def test_compiled_and_plain_models_load_each_others_checkpoints(tmp_path, order):
    """`torch.compile` adds "_orig_mod." to names; buffers and frozen parameters once kept it in files."""
    models = []
    for compiled in order:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        model[0].bias.requires_grad_(requires_grad=False).fill_(len(models))
        model[1].running_mean.fill_(len(models))
        inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        models.append((model, wrap(torch.compile(model, backend="eager") if compiled else model, inner)))
    save_checkpoint(models[0][1], tmp_path)
    load_checkpoint(models[1][1], tmp_path)
    assert all(map(torch.equal, models[0][0].state_dict().values(), models[1][0].state_dict().values()))


def test_float16_gradients_under_a_scaler_raise():
    """Divided by the scale in float16, small gradients once became 0 without a word."""
    model = torch.nn.Linear(2, 1).half()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**25)
    scaler.scale(torch.ones(()))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    with pytest.raises(InputError, match=r"^GradScaler: gradients are float16.*torch\.autocast$"):
        scaler.step(optimizer)
    assert all((parameter.grad == 0.5).all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", [set, frozenset])
def test_unordered_parameters_of_a_new_group_raise(kind):
    model, inner = make([0])
    optimizer = wrap(model, inner)
    with pytest.raises(InputError, match=rf"^add_param_group: params is a {kind.__name__}, whose order differs"):
        optimizer.add_param_group({"params": kind(model[1].parameters())})


@pytest.mark.parametrize("state", [deque([1]), np.float64(2), Path("a"), frozenset([1])])
def test_register_stateful_refuses_states_that_a_joining_worker_cannot_load(monkeypatch, state):
    class Holder:
        def state_dict(self):
            return {"kept": state}

        def load_state_dict(self, state):
            pass

    model, inner = make([0, 1])
    optimizer = wrap(model, inner)
    monkeypatch.setattr(type(optimizer.run.membership), "may_change", True)
    with pytest.raises(InputError, match=r"^register_stateful: Holder: state_dict\(\) holds [\w.]+, which a joining"):
        optimizer.register_stateful(Holder())
    optimizer.register_stateful(torch.optim.lr_scheduler.MultiStepLR(inner, [1, 2]))


def test_keep_of_another_type_raises(tmp_path):
    model, inner = make([0, 1])
    with pytest.raises(InputError, match=r"^save_checkpoint: keep: expected int, got str '3'"):
        save_checkpoint(wrap(model, inner), tmp_path, keep="3")


def test_sharded_load_takes_the_newest_round_and_ignores_other_folders(tmp_path, monkeypatch):
    for name in ("round-00000010", "round-100000000", "round-00000010.bak", "round-old"):
        place = tmp_path / name / "replica-00000"
        place.mkdir(parents=True)
        (place / sharded_checkpoint.METADATA).touch()
    monkeypatch.setattr(sharded_checkpoint, "all_gather_json", lambda one: [one])
    assert sharded_checkpoint.newest(tmp_path, 0).name == "round-100000000"


def test_extra_keeps_keys_of_dicts_and_the_milestones_of_a_scheduler():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
    parts = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6]), torch.optim.lr_scheduler.ConstantLR(optimizer)]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [8])
    extra = {"scheduler": scheduler.state_dict(), "seen": {5: 6, None: {"a": {0.5: True}}}, PAIRS: [1], "": []}
    found = decode_keys(json.loads(json_of({"extra": encode_keys(extra)}))["extra"])
    assert found == extra
    assert type(found["scheduler"]["_schedulers"][0]["milestones"]) is Counter
    with pytest.raises(InputError, match=r"must be JSON \(extra\.\(1, 2\): keys must be str"):
        json_of({"extra": encode_keys({(1, 2): 3})})
    with pytest.raises(InputError, match=r"must be JSON \(extra\.scheduler\.1: Object of type Tensor"):
        json_of({"round": 3, "extra": encode_keys({"seed": 5, "scheduler": [1.0, torch.ones(2)]})})
