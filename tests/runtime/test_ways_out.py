"""What a message of the runtime tells the user to do is done, and then the script works, without that message.

Each case is one script that runs twice: as somebody writes it who meets the message, and as the message says.
"""

import copy
import threading
import warnings
from fractions import Fraction

import pytest
import torch

from helpers.warm import WARM
from partreduce.runtime.averaging.p_reduce import p_reduce
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    DelayedAveraging,
    GroupPhases,
    NeighborAveraging,
    Pairwise,
    StaticGroups,
)

N = 2
PAIR = GroupPhases((Phase.from_groups(N, [range(N)]),))
BOTH = (Round.from_edges(N, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]),)
WAYS = {}


def way(says):
    """A case: `script(world, told, folder)`, and the end of what it meets where it is not `told`."""

    def add(script):
        WAYS[script.__name__] = (says, script)
        return script

    return add


_building = threading.Lock()


def network():
    with _building:  # the seed belongs to the process, and the workers are threads of it
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def wrapped(world, model, strategy=None, inner=None, *, n=N, timeout=60, **options):
    inner = inner or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    schedule = Schedule("ways out", Cluster.regular(1, n), strategy or AllReduce(steps_per_round=2))
    return DistributedOptimizer(inner, model, schedule, timeout=timeout, world=world, **options)


def backward(model, rank=0, steps=1):
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * steps + rank))
    model(batch).square().mean().backward()


def train(model, optimizer, steps=2):
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, optimizer.rank, step)
        optimizer.step()


def to_the_end(model, optimizer, steps=2):
    train(model, optimizer, steps)
    optimizer.finish()


# The model, before and after it is wrapped.


@way("wrap first and then freeze it for as long as you like")
def freezing(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model) if told else None
    model[1].weight.requires_grad_(requires_grad=False)
    optimizer = optimizer or wrapped(world, model)
    train(model, optimizer)
    model[1].weight.requires_grad_(requires_grad=True)
    to_the_end(model, optimizer)


@way("change the model first, on all workers, then wrap")
def replacing_a_layer(world, told, _folder):
    model = network()
    if told:
        model[1] = torch.nn.Linear(4, 3)
    optimizer = wrapped(world, model)
    if not told:
        model[1] = torch.nn.Linear(4, 3)
    to_the_end(model, optimizer)


@way("change the model first, then wrap")
def replacing_a_parameter(world, told, _folder):
    model = network()
    if told:
        model[1].bias = torch.nn.Parameter(torch.zeros(2))
    optimizer = wrapped(world, model)
    if not told:
        model[1].bias = torch.nn.Parameter(torch.zeros(2))
    to_the_end(model, optimizer)


@way("do it before, or write in place, p.data.copy_(...)")
def replacing_storage(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    if told:
        model[0].weight.data.copy_(torch.ones(4, 4))
    else:
        model[0].weight.data = torch.ones(4, 4)
    to_the_end(model, optimizer)


@way("do it before, or write in place")
def converting(world, told, _folder):
    model = network()
    if told:
        model.bfloat16()
    optimizer = wrapped(world, model)
    model.bfloat16()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    optimizer.finish()


@way("give each its own part of the model")
def two_optimizers(world, told, _folder):
    model = network()
    first = wrapped(world, model[0] if told else model)
    second = wrapped(world, model[1] if told else model)
    for _ in range(2):
        backward(model)
        first.step()
        second.step()
    first.finish()
    second.finish()


@way("run one forward pass, then wrap")
def a_lazy_layer(world, told, _folder):
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    if told:
        model(torch.ones(1, 4))
    to_the_end(model, wrapped(world, model, inner=torch.optim.SGD(model.parameters(), lr=0.1)))


@way("call model.to_empty(device=...), initialize it and make the optimizer, then wrap")
def the_meta_device(world, told, _folder):
    with torch.device("meta"):
        model = torch.nn.Linear(4, 2)
    if told:
        model.to_empty(device="cpu")
        model.reset_parameters()
    to_the_end(model, wrapped(world, model))


@way("make it dense, or a buffer if it is a constant")
def a_sparse_parameter(world, told, _folder):
    model = network()
    if told:
        model.register_parameter("extra", torch.nn.Parameter(torch.eye(4)))
        model.register_buffer("graph", torch.eye(4).to_sparse())
    else:
        model.register_parameter("extra", torch.nn.Parameter(torch.eye(4).to_sparse()))
    to_the_end(model, wrapped(world, model))


@way("so convert it, or freeze it before wrapping")
def a_float8_parameter(world, told, _folder):
    model = network()
    eighth = torch.ones(4).to(torch.float8_e4m3fn)
    if told:
        model.register_parameter("converted", torch.nn.Parameter(eighth.bfloat16()))
    model.register_parameter("extra", torch.nn.Parameter(eighth, requires_grad=not told))
    to_the_end(model, wrapped(world, model))


@way("let both modules hold one and the same parameter (b.weight = a.weight)")
def shared_memory(world, told, _folder):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight if told else torch.nn.Parameter(model[0].weight.data)
    to_the_end(model, wrapped(world, model))


@way("keep its size, or give it the new one on every worker before DistributedOptimizer is made")
def a_buffer_that_grows(world, told, _folder):
    model = network()
    model.register_buffer("positions", torch.arange(11 if told else 6))
    optimizer = wrapped(world, model)
    model.positions = torch.arange(11)
    to_the_end(model, optimizer)


# The optimizer and its options.


@way("pass the model that the optimizer trains")
def another_models_optimizer(world, told, _folder):
    model, other = network(), network()
    to_the_end(model, wrapped(world, model, inner=torch.optim.SGD((model if told else other).parameters(), lr=0.1)))


@way("wrap the plain optimizer once")
def wrapping_twice(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    if not told:
        optimizer = wrapped(world, model, inner=optimizer)
    to_the_end(model, optimizer)


@way("unfreeze first, then wrap")
def a_group_of_frozen_parameters(world, told, _folder):
    model = network()
    model[1].requires_grad_(requires_grad=told)
    optimizer = wrapped(world, model, inner=torch.optim.SGD(model[0].parameters(), lr=0.1))
    optimizer.add_param_group({"params": model[1].parameters()})
    to_the_end(model, optimizer)


@way("give the optimizer these settings when it is made")
def a_group_with_momentum(world, told, _folder):
    model = network()
    inner = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9 if told else 0.0)
    optimizer = wrapped(world, model, inner=inner, optimizer_state="average")
    optimizer.add_param_group({"params": list(model[1].parameters()), "momentum": 0.9})
    to_the_end(model, optimizer)


@way("start 3 or design a schedule for 2")
def a_schedule_for_others(world, told, _folder):
    model = network()
    to_the_end(model, wrapped(world, model, n=2 if told else 3))


@way("use 'broadcast', or load the same model on all workers")
def models_that_begin_apart(world, told, _folder):
    for initial in ("broadcast", "keep") if told else ("keep",):
        model = network()
        if initial == "broadcast" or not told:
            with torch.no_grad():
                model[0].weight += world.rank
        to_the_end(model, wrapped(world, model, AllReduce(), initial=initial))


@way("use 'average' or 'local'")
def buffers_of_neighbors(world, told, _folder):
    for buffers in ("average", "local") if told else ("broadcast",):
        model = network()
        to_the_end(model, wrapped(world, model, NeighborAveraging(rounds=BOTH), buffers=buffers))


@way("the states are equal already; use 'local'")
def states_under_averaged_gradients(world, told, _folder):
    model = network()
    to_the_end(model, wrapped(world, model, AllReduce(), optimizer_state="local" if told else "average"))


@way("use 'local' or no overlap")
def states_that_come_late(world, told, _folder):
    late = StaticGroups(phases=PAIR, sync=DelayedAveraging())
    for strategy, state in [(late, "local"), (StaticGroups(phases=PAIR), "average")] if told else [(late, "average")]:
        model = network()
        to_the_end(model, wrapped(world, model, strategy, optimizer_state=state))


@way("average parameters instead (steps_per_round > 1)")
def lbfgs(world, told, _folder):
    model = network()
    inner = torch.optim.LBFGS(model.parameters(), max_iter=2)
    optimizer = wrapped(world, model, AllReduce(steps_per_round=2 if told else 1), inner=inner)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    optimizer.finish()


@way("has no outer steps, so no anchor; leave it out")
def outer_state_without_outer_steps(world, told, _folder):
    model = network()
    to_the_end(model, wrapped(world, model, **({} if told else {"outer_state": "host"})))


@way("is a file; give the path of a directory")
def a_trace_that_is_a_file(world, told, folder):
    path = folder / f"trace-{world.rank}"
    if not told:
        path.write_text("")
    model = network()
    to_the_end(model, wrapped(world, model, trace=path))


# The training loop.


@way("call it before finish() and outside mean_model()")
def a_step_inside_the_mean_model(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    with optimizer.mean_model():
        if not told:
            train(model, optimizer, 1)
    to_the_end(model, optimizer)


@way("call it before finish() and outside mean_model()")
def a_checkpoint_after_the_end(world, told, folder):
    model = network()
    optimizer = wrapped(world, model)
    train(model, optimizer)
    if told:
        save_checkpoint(optimizer, folder)
    optimizer.finish()
    if not told:
        save_checkpoint(optimizer, folder)


@way("use sparse=False in its embedding")
def a_sparse_gradient(world, told, _folder):
    model = torch.nn.Embedding(5, 2, sparse=not told)
    optimizer = wrapped(world, model, AllReduce())
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    optimizer.finish()


@way("call optimizer.average_gradients() before it")
def clipping(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce())
    for step in range(3):
        optimizer.zero_grad()
        backward(model, world.rank, step)
        if told:
            optimizer.average_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    optimizer.finish()


@way("call backward() first, then average_gradients()")
def a_gradient_after_the_average(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce())
    optimizer.zero_grad()
    backward(model, world.rank)
    if told:
        backward(model, world.rank, 2)
    optimizer.average_gradients()
    if not told:
        backward(model, world.rank, 2)
    optimizer.step()
    optimizer.finish()


@way("call step() of the DistributedOptimizer")
def the_plain_optimizer(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce())
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, world.rank)
        (optimizer if told else optimizer.optimizer).step()
    optimizer.finish()


@way("call zero_grad() and continue as in every other step instead")
def skipping_where_means_are_clipped(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce())
    for step in range(3):
        optimizer.zero_grad()
        backward(model, world.rank, step)
        if step == 2:
            if told:
                optimizer.zero_grad()
            else:
                optimizer.skip()
                return
        optimizer.average_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    optimizer.finish()


@way("give that as a function, join(after_averaging=...)")
def clipping_with_uneven_data(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce(), timeout=60 if told else 5)

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    with optimizer.join(clip) if told else optimizer.join():
        for step in range(2 + world.rank):
            optimizer.zero_grad()
            backward(model, world.rank, step)
            optimizer.average_gradients()
            clip()
            optimizer.step()
    optimizer.finish()


@way("not the mean of all; do it inside `with optimizer.mean_model():`")
def saving_the_live_model(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce(steps_per_round=3))
    for step in range(3):
        train(model, optimizer, 1)
        if step == 1:
            if told:
                with optimizer.mean_model():
                    model.state_dict()
            else:
                model.state_dict()
    optimizer.finish()


@way("to continue from what is loaded, call it after that")
def loading_inside_the_mean_model(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model, AllReduce(steps_per_round=3))
    state = copy.deepcopy(model.state_dict())
    train(model, optimizer, 3)
    with optimizer.mean_model():
        if not told:
            model.load_state_dict(state)
    if told:
        model.load_state_dict(state)
    to_the_end(model, optimizer, 3)


@way("give one number, or a tensor that holds one")
def logging_a_vector(world, told, folder):
    model = network()
    optimizer = wrapped(world, model, trace=folder)
    train(model, optimizer)
    optimizer.log(loss=torch.tensor(1.0) if told else torch.ones(2))
    optimizer.finish()


@way("give a SummaryWriter, the path of a CSV file or a function")
def a_writer_of_statistics(world, told, folder):
    model = network()
    optimizer = wrapped(world, model)
    train(model, optimizer)
    for writer in (folder / f"{world.rank}.csv", lambda numbers: None) if told else (3,):
        optimizer.stats(writer)
    optimizer.finish()


@way("give a DataLoader or a list of batches")
def batches_of_a_number(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    assert list(optimizer.batches([1, 2] if told else 2)) == [1, 2]
    to_the_end(model, optimizer)


# States and checkpoints.


@way("copy optimizer.state_dict(), or optimizer.optimizer, which is the plain one")
def copying_the_optimizer(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    for one in (optimizer.state_dict(), optimizer.optimizer) if told else (optimizer,):
        copy.deepcopy(one)
    to_the_end(model, optimizer)


@way("give what state_dict() returned")
def loading_a_models_state(world, told, _folder):
    model = network()
    optimizer = wrapped(world, model)
    optimizer.load_state_dict(optimizer.state_dict() if told else model.state_dict())
    to_the_end(model, optimizer)


@way("pass the DistributedOptimizer first")
def a_checkpoint_of_the_plain_optimizer(world, told, folder):
    model = network()
    optimizer = wrapped(world, model)
    save_checkpoint(optimizer if told else optimizer.optimizer, folder)
    to_the_end(model, optimizer)


@way("pass a path")
def a_checkpoint_at_a_number(world, told, folder):
    model = network()
    optimizer = wrapped(world, model)
    save_checkpoint(optimizer, folder if told else 7)
    to_the_end(model, optimizer)


@way("call it where optimizer.steps % 4 == 0, next at step 4")
def a_checkpoint_inside_a_round(world, told, folder):
    model = network()
    optimizer = wrapped(world, model, Pairwise(active=(0,), steps_per_round=4))
    train(model, optimizer, 4 if told else 3)
    save_checkpoint(optimizer, folder)
    to_the_end(model, optimizer, 4)


@way("pass allow_different_run=True to start from the mean model under this schedule")
def a_checkpoint_of_another_schedule(world, told, folder):
    model = network()
    first = wrapped(world, model)
    train(model, first)
    save_checkpoint(first, folder)
    first.finish()
    model = network()
    optimizer = wrapped(world, model, AllReduce(steps_per_round=3))
    load_checkpoint(optimizer, folder, allow_different_run=told)
    to_the_end(model, optimizer, 3)


# P-Reduce.


@way("give at least one")
def p_reduce_of_nothing(world, told, _folder):
    p_reduce([torch.ones(2)] if told else [], [0, 1], world=world)


@way("give a clone() of it")
def p_reduce_of_an_expanded_tensor(world, told, _folder):
    tensor = torch.ones(1).expand(3)
    p_reduce(tensor.clone() if told else tensor, [0, 1], world=world)


@way("is empty; leave it out")
def p_reduce_of_an_empty_tensor(world, told, _folder):
    p_reduce([torch.ones(2)] if told else [torch.ones(2), torch.empty(0)], [0, 1], world=world)


@pytest.mark.parametrize("name", WAYS)
def test_doing_what_the_message_says_works(ranks, tmp_path, name):
    says, script = WAYS[name]
    for told in (False, True):
        folder = tmp_path / str(told)
        folder.mkdir()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            results = ranks.run(N, lambda world: script(world, told, folder), catch=PartreduceError)  # noqa: B023 - used at once
        said = [str(one) for one in results if isinstance(one, Exception)] + [str(one.message) for one in warned]
        if told:
            assert results == [None] * N
            assert not any(says in text for text in said), said
        else:
            assert any(says in text for text in said), said
            ranks.fresh()


# Two runs of one seed.

ONE_SEED = """
import sys, torch, partreduce
data = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
if sys.argv[1] != "whole":
    data = partreduce.shard_dataset(data)
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
every = partreduce.strategies.AllReduce(steps_per_round=int(sys.argv[2]))
schedule = partreduce.Schedule("every", partreduce.Cluster.regular(1, 2), every)
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=60)
for batch in data.split(8)[:4]:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    if sys.argv[1] == "averages itself":
        for parameter in model.parameters():
            partreduce.p_reduce(parameter.grad, [0, 1])
    optimizer.step()
optimizer.finish()
print("rows", sorted(round(float(row[0]), 4) for row in data)[:2], len(data))
"""


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps_per_round", ["1", "2"])
def test_workers_that_draw_one_seed_from_all_data_are_warned_and_sharding_helps(tmp_path, steps_per_round):
    """Both ways out: a part of its own, as `partreduce.shard_dataset` gives it, and no averages of the script's own."""
    (tmp_path / "train.py").write_text(ONE_SEED)
    runs = {
        data: WARM.run("partreduce", "run", "-n", "2", "train.py", data, steps_per_round, cwd=tmp_path, check=True)
        for data in ("whole", "sharded", "averages itself")
    }
    says = "give each its own part, as partreduce.shard_dataset(data) does"
    assert [says in " ".join(run.stderr.split()) for run in runs.values()] == [True, False, True]
    parts = {line.partition("rows")[2] for line in runs["sharded"].stdout.splitlines() if "rows" in line}
    assert len(parts) == 2
    assert all(part.endswith(" 32") for part in parts)


def test_there_are_enough_of_them():
    assert len(WAYS) >= 40
