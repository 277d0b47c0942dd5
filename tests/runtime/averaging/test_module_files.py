"""Files and copies made during a run: they load without partreduce, compute the same outputs and are not averaged."""

import copy
import io
import warnings
from dataclasses import replace

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import partreduce
from helpers.children import environment
from helpers.thread_ranks import on_ranks
from helpers.training import group_phases, wrap
from helpers.warm import WARM
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.errors import InputError
from partreduce.runtime.guard.guard import NOTHING

TWO = Cluster.regular(1, 2)
PAIRS = group_phases(2, [[0, 1]], [])
TABLE = st.TablePlacement(parameter="0.weight", rows=20, columns=4, way=st.Placement.GATHER)
STRATEGIES = {
    "gradients": st.AllReduce(),
    "gradients by layers": st.AllReduce(transport=st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)),
    "gradients with delay": st.AllReduce(sync=st.Pipeline()),
    "parameters": st.StaticGroups(phases=PAIRS),
    "parameters with delay": st.AllReduce(steps_per_round=2, sync=st.DelayedAveraging()),
    "gathered tables": st.AllReduce(payload=st.Payload(tables=(TABLE,))),
}
LOADS = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "partreduce"]:
    sys.modules[name] = None  # as if it were not installed
import pathlib, torch
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    saved = torch.load(path, weights_only=False)
    with torch.no_grad():
        assert torch.equal(saved["model"](saved["inputs"]), saved["outputs"]), path
    saved["model"].train()
    saved["model"](saved["inputs"]).sum().backward()
    saved["model"].load_state_dict(saved["model"].state_dict())
    print(path.stem)
"""


def network(name):
    first = [torch.nn.EmbeddingBag(20, 4)] if "tables" in name else [torch.nn.Linear(3, 4)]
    return torch.nn.Sequential(*first, torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def inputs_of(name, rank):
    return torch.arange(15).view(5, 3) + rank if "tables" in name else torch.arange(15.0).view(5, 3) / 8 + rank


def saved_bytes(model, inputs):
    was_training = model.training
    with torch.no_grad():
        outputs = model.eval()(inputs)
    buffer = io.BytesIO()
    torch.save({"model": model, "inputs": inputs, "outputs": outputs}, buffer)
    model.train(was_training)
    return buffer.getvalue()


def files_in_mid_run(name, world):
    """Files of models, and of optimizer, scheduler and scaler states, that one worker saves, by name."""
    model, inputs = network(name), inputs_of(name, world.rank)
    plain = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(plain, model, Schedule(name, TWO, STRATEGIES[name]), world=world, timeout=60)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    takes_scaler = "layers" not in name and "tables" not in name
    scaler = torch.amp.GradScaler("cpu", enabled=takes_scaler)
    files, others = {}, {}
    for step in range(12):  # the first steps are checked more closely than later ones
        if step in (0, 3, 11):
            moving = AveragedModel(model)
            moving.update_parameters(model)
            made = {"model": model, "copy": copy.deepcopy(model), "moving": moving, "part": model[:2]}
            files |= {f"{name} {step} {what}": saved_bytes(one, inputs) for what, one in made.items()}
            with optimizer.mean_model() as mean:
                files[f"{name} {step} mean"] = saved_bytes(mean, inputs)
                files[f"{name} {step} copy of mean"] = saved_bytes(copy.deepcopy(mean), inputs)
            for what, state in {
                "model": model.state_dict(), "plain": plain.state_dict(), "copy of plain": copy.deepcopy(plain),
                "pickled plain": plain, "scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(),
                "parameters": list(model.parameters()),
            }.items():  # fmt: skip
                torch.save(state, buffer := io.BytesIO())
                others[f"{name} {step} {what}"] = buffer.getvalue()
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    optimizer.finish()
    files[f"{name} finished"] = saved_bytes(model, inputs)
    return files, others


@pytest.mark.filterwarnings("ignore:.*mean of all")
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_models_saved_mid_run_load_without_partreduce(ranks, tmp_path):
    for name in STRATEGIES:
        for files, others in ranks.run(2, lambda world: files_in_mid_run(name, world)):  # noqa: B023 - called here
            for file, data in (files | others).items():
                assert b"partreduce" not in data, file
            for file, data in files.items():
                (tmp_path / f"{file}.pt").write_bytes(data)
    done = WARM.run("-c", LOADS, tmp_path, environment=environment(OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(STRATEGIES) * (3 * 6 + 1)


@pytest.mark.parametrize("name", ["gradients", "parameters", "parameters with delay"])
def test_deep_copy_is_neither_averaged_nor_checked(ranks, name):
    def work(world):
        model, inputs = network(name), inputs_of(name, world.rank)
        schedule = Schedule(name, TWO, STRATEGIES[name])
        optimizer = wrap(world, model, schedule)

        def step():
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        step()
        copied = copy.deepcopy(model)
        own = [parameter.detach().clone() for parameter in copied.parameters()]
        loads = optimizer.engine.guard.loads
        copied.eval()(inputs)
        with torch.no_grad():
            copied(inputs)
        copied.load_state_dict(copied.state_dict())
        torch.save(copied, io.BytesIO())
        assert optimizer.engine.guard.loads == loads
        step()
        assert all(map(torch.equal, own, copied.parameters()))
        alone = torch.optim.SGD(copied.parameters(), lr=0.1)  # whose steps are not rejected either
        copied.train()(inputs).sum().backward()
        alone.step()
        hooks = [
            hook
            for module in copied.modules()
            for kept in (module._forward_pre_hooks, module._state_dict_pre_hooks, module._load_state_dict_post_hooks)
            for hook in kept.values()
        ]
        assert hooks
        assert all(hook is NOTHING for hook in hooks)
        optimizer.finish()

    with warnings.catch_warnings(action="error"):
        ranks.run(2, work)


@on_ranks(2)
def test_copied_plain_optimizer_steps_without_the_schedule(world):
    model = network("")
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = partreduce.attach(plain, model, Schedule("s", TWO, st.AllReduce()), world=world, timeout=60)
    copied, operations = copy.deepcopy(plain), attached.stats()["operations"]
    for group in copied.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    copied.step()
    assert attached.stats()["operations"] == operations
    attached.finish()


class Words(torch.nn.Embedding):
    """A class of the user's."""


@pytest.mark.parametrize("way", [st.Placement.GATHER, st.Placement.SHARDED])
def test_module_with_a_complete_table_pickles_as_the_original_class(ranks, way):
    def work(world):
        model = torch.nn.Sequential(Words(20, 4), torch.nn.Linear(4, 1))
        strategy = st.AllReduce(payload=st.Payload(tables=(replace(TABLE, way=way),)))
        optimizer = wrap(world, model, Schedule("s", TWO, strategy))
        torch.save(model[0], buffer := io.BytesIO())
        optimizer.finish()
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        assert type(loaded) is Words
        assert torch.equal(loaded.weight, model[0].weight)
        assert vars(loaded).keys() == vars(Words(20, 4)).keys()

    if way is st.Placement.GATHER:
        ranks.run(2, work)
        return
    errors = ranks.run(2, work, catch=InputError)
    assert all("its rows are spread over the workers, so the model cannot be pickled" in str(one) for one in errors)
