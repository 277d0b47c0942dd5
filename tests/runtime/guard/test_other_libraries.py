"""Libraries that average or shard by themselves are rejected by name."""

import copy
import gc
import io
import types
import warnings

import pytest
import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from helpers.thread_ranks import on_ranks
from helpers.training import one_at_a_time, static_groups
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import InputError
from partreduce.runtime.guard.table import FIRST_STEPS
from partreduce.runtime.guard.wrapping import WRITE_OTHERS
from partreduce.strategies import AllReduce, GroupPhases, Phase, StaticGroups

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch uses its own torch.jit there
    from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

PAIRS = Schedule("pairs", Cluster.regular(1, 2), static_groups(2, [[0, 1]]))
GRADIENTS = Schedule("gradients", Cluster.regular(1, 2), AllReduce())
SHARDS = {"device_id": torch.device("cpu"), "sharding_strategy": ShardingStrategy.NO_SHARD}


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def refusal(ranks, act):
    errors = ranks.run(2, act, catch=InputError)
    assert all(isinstance(error, InputError) and "\n" not in str(error) for error in errors)
    message = {str(error).replace(f"of worker {rank}", "of worker 0") for rank, error in enumerate(errors)}
    assert len(message) == 1, "equal, except for the rank of the worker"
    return message.pop()


class Holds(torch.optim.SGD):
    """A wrapper, as frameworks make them."""

    def __init__(self, inner):
        super().__init__([p for group in inner.param_groups for p in group["params"]], lr=0.1)
        self.optim = inner


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["ZeroRedundancyOptimizer", "PostLocalSGDOptimizer"])
@pytest.mark.usefixtures("group")
def test_torch_optimizers_that_write_remote_parameters_are_rejected(ranks, kind, held):
    def act(world):
        model = network()
        if kind == "ZeroRedundancyOptimizer":
            inner = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        else:
            inner = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(4))
        DistributedOptimizer(Holds(inner) if held else inner, model, PAIRS, world=world)

    message = refusal(ranks, act)
    assert message.startswith(f"optimizer: {kind} ")
    assert "pass the plain optimizer" in message


@pytest.mark.parametrize(
    "keep", [lambda one: one, lambda one: [one], lambda one: {"first": one}], ids=["itself", "list", "dict"]
)
def test_optimizer_inside_a_wrapper_is_rejected(ranks, keep):
    copied = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})

    def act(world):
        model = network()
        wrapper = sgd(model)
        wrapper.steps_by = keep(copied(model.parameters(), lr=0.1))
        DistributedOptimizer(wrapper, model, PAIRS, world=world)

    assert refusal(ranks, act).startswith("optimizer: ZeroRedundancyOptimizer ")


@pytest.mark.parametrize("name", sorted(WRITE_OTHERS))
def test_copied_optimizer_classes_are_rejected_by_base_class_name(ranks, name):
    copied = type("Mine", (type(name, (torch.optim.SGD,), {}),), {})

    def act(world):
        model = network()
        DistributedOptimizer(copied(model.parameters(), lr=0.1), model, PAIRS, world=world)

    assert refusal(ranks, act).startswith(f"optimizer: {name} ")


def test_horovod_optimizer_with_the_inner_class_name_is_rejected(ranks):
    wrapped = type("SGD", (torch.optim.SGD,), {"skip_synchronize": lambda _: None})

    def act(world):
        model = network()
        DistributedOptimizer(wrapped(model.parameters(), lr=0.1), model, PAIRS, world=world)

    assert "Horovod" in refusal(ranks, act)


def train(world, schedule, *, before, part=False, closure=False, syncs=True):
    """Take two steps with DDP around the model or its parent, created before or after the optimizer."""
    model = network()
    outer = torch.nn.Sequential(model) if part else model
    wrapper = DistributedDataParallel(outer) if before else None
    optimizer = DistributedOptimizer(sgd(model), model, schedule, world=world)
    wrapper = wrapper or DistributedDataParallel(outer)

    def evaluate():
        optimizer.zero_grad()
        with one_at_a_time:  # torch notes for the whole process which wrapper's forward pass is running
            loss = wrapper(torch.ones(4, 3)).square().mean()
            loss.backward()
        return loss

    for _ in range(2):
        if closure:
            optimizer.step(evaluate)
        elif syncs:
            evaluate()
            optimizer.step()
        else:
            with wrapper.no_sync():
                evaluate()
            optimizer.step()
    optimizer.finish()
    return optimizer.steps


@pytest.mark.parametrize("schedule", [PAIRS, GRADIENTS], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "misuse",
    [{"before": True}, {"before": False}, {"before": True, "part": True}, {"before": True, "closure": True}],
    ids=str,
)
@pytest.mark.usefixtures("group")
def test_ddp_around_the_model_is_detected_in_the_first_step(ranks, schedule, misuse):
    message = refusal(ranks, lambda world: train(world, schedule, **misuse))
    assert "runs inside a DistributedDataParallel, which has averaged the gradients before step()" in message
    assert message.endswith("train the bare model")


class CallsSubmodules(torch.nn.Module):
    """Holds a model and calls only its submodules, as wrappers do whose forward pass calls a method of the model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model[1](self.model[0](batch))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("place", ["around a submodule", "calls the submodules"])
@pytest.mark.usefixtures("group")
def test_ddp_around_submodules_is_detected_in_the_first_step(ranks, place, before):
    def act(world):
        model = network()

        def wrap_submodules():
            if place == "calls the submodules":
                return DistributedDataParallel(CallsSubmodules(model))
            model[0] = DistributedDataParallel(model[0])
            return model

        called = wrap_submodules() if before else None
        optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
        called = called or wrap_submodules()
        with one_at_a_time:
            called(torch.ones(4, 3)).sum().backward()
        optimizer.step()

    assert "runs inside a DistributedDataParallel" in refusal(ranks, act)


@pytest.fixture
def no_garbage_collection():
    """Disable garbage collection: no watched model of another test may be freed while torch iterates over them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def compile_step(model):
    torch.compiler.reset()
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    ("wrap", "before"),
    [
        (lambda model: compile_step(DistributedDataParallel(model)), True),
        (lambda model: DistributedDataParallel(compile_step(model)), False),
        (lambda model: compile_step(DistributedDataParallel(CallsSubmodules(model))), True),
        (lambda model: compile_step(DistributedDataParallel(CallsSubmodules(model))), False),
    ],
    ids=["compiled wrapper", "wrapper of a compiled model", "calls submodules", "calls submodules, later"],
)
@pytest.mark.usefixtures("group", "no_garbage_collection")
def test_ddp_is_detected_with_torch_compile(ranks, wrap, before):
    def act(world):
        with one_at_a_time:  # as torch compiles
            model = network()
            called = wrap(model) if before else None
        optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
        with one_at_a_time:
            called = wrap(model) if called is None else called
            called(torch.ones(4, 3)).sum().backward()
        optimizer.step()

    assert "runs inside a DistributedDataParallel" in refusal(ranks, act)


@pytest.mark.usefixtures("no_garbage_collection")
@on_ranks(2, [1, 1])
def test_compiled_model_keeps_one_graph(world):
    model = network()
    optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
    graphs = torch._dynamo.testing.CompileCounter()
    with one_at_a_time:
        torch.compiler.reset()
        called = torch.compile(model, backend=graphs, fullgraph=True)
        for _ in range(3):
            called(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.finish()
    return graphs.frame_count


@pytest.mark.usefixtures("group")
@on_ranks(2, [[1, 0, 0]] * 2)
def test_submodule_hooks_are_removed_after_the_first_steps(world):
    model = network()
    optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
    watched = [len(model[0]._forward_pre_hooks)]
    for _ in range(FIRST_STEPS):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    watched.append(len(model[0]._forward_pre_hooks))
    with optimizer.mean_model():
        pass
    watched.append(len(model[0]._forward_pre_hooks))
    optimizer.finish()
    return watched


@pytest.mark.usefixtures("group")
def test_ddp_under_no_sync_is_allowed(ranks):
    assert ranks.run(2, lambda world: train(world, PAIRS, before=True, syncs=False)) == [2, 2]


@pytest.mark.usefixtures("group")
@on_ranks(2, [1, 1])
def test_ddp_around_another_model_is_allowed(world):
    model, other = network(), DistributedDataParallel(network())
    optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
    with one_at_a_time:
        other(torch.ones(4, 3)).sum().backward()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.finish()
    return optimizer.steps


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.usefixtures("group")
def test_fsdp_after_wrapping_is_rejected(ranks, whole):
    def act(world):
        model = network()
        optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
        FullyShardedDataParallel(model, **SHARDS, use_orig_params=whole)
        optimizer.step()

    assert "FullyShardedDataParallel has sharded the model after DistributedOptimizer was made" in refusal(ranks, act)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.usefixtures("group")
def test_fsdp_model_is_rejected_at_wrapping(ranks, whole):
    def act(world):
        model = FullyShardedDataParallel(network(), **SHARDS, use_orig_params=whole)
        DistributedOptimizer(sgd(model), model, PAIRS, world=world)

    assert "model: is sharded by FullyShardedDataParallel; pass the bare module" in refusal(ranks, act)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("accelerate.optimizer", "Accelerate's prepare()"),
        ("lightning.pytorch.loops", "strategy=partreduce.lightning.ScheduleStrategy"),
        ("pytorch_lightning.loops", "strategy=partreduce.lightning.ScheduleStrategy"),
        ("transformers.trainer", "the Transformers Trainer wraps and moves models by itself"),
    ],
)
def test_error_after_a_framework_moved_the_model_names_the_framework(ranks, package, words):
    """As in these packages, whose code moves the model and calls step()."""
    library = types.ModuleType(package)
    exec("def move_and_step(model, optimizer):\n    model.double()\n    optimizer.step()\n", library.__dict__)

    def act(world):
        model = network()
        library.move_and_step(model, DistributedOptimizer(sgd(model), model, PAIRS, world=world))

    message = refusal(ranks, act)
    assert "the storage of parameter '0.weight' of worker 0 was replaced" in message
    assert words in message
    assert "model.to()" not in message


def test_error_after_the_script_moved_the_model_names_the_methods(ranks):
    def act(world):
        model = network()
        optimizer = DistributedOptimizer(sgd(model), model, PAIRS, world=world)
        model.double()
        optimizer.step()

    assert "model.to(), .half(), .cuda()" in refusal(ranks, act)


def warnings_of(ranks, schedule, act, *, n=2):
    """Return the warnings of a run of three steps with two calls of `act(model, optimizer)` after the second step."""

    def work(world):
        model = network()
        optimizer = DistributedOptimizer(sgd(model), model, schedule, world=world)
        act(model, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((4, 3), 1.0 + world.rank)).square().mean().backward()
            optimizer.step()
            if step == 1:
                act(model, optimizer)
                act(model, optimizer)
        optimizer.finish()
        act(model, optimizer)

    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(n, work)
    ours = [warning for warning in caught if "partreduce" in str(warning.message)]
    assert {warning.filename for warning in ours} <= {__file__}, "each points at the line that used the model"
    return sorted(str(warning.message) for warning in ours)


ONE_OF_THREE = Schedule(
    "one of three",
    Cluster.regular(1, 3),
    StaticGroups(phases=GroupPhases((Phase.from_groups(3, [[0, 1]]),) * 2 + (Phase.from_groups(3, [[0, 1, 2]]),))),
)


def evaluates(model, _optimizer):
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 3))
    model.train()


def saves(model, _optimizer):
    model.state_dict()


def saves_submodule(model, _optimizer):
    model[1].state_dict()


def writes(model, _optimizer):
    torch.save(model, io.BytesIO())


def writes_submodule(model, _optimizer):
    torch.save({"step": 1, "part": model[0]}, io.BytesIO())


@pytest.mark.parametrize(
    ("act", "use"),
    [
        (evaluates, "a forward pass evaluate"),
        (saves, "model.state_dict() holds"),
        (saves_submodule, "model.1.state_dict() holds"),
        (writes, "torch.save(model), or pickling it, writes"),
        (writes_submodule, "torch.save(model.0), or pickling it, writes"),
    ],
)
def test_using_the_live_model_warns_once_on_each_worker(ranks, act, use):
    messages = warnings_of(ranks, ONE_OF_THREE, act, n=3)
    assert len(messages) == 3
    for rank, text in enumerate(messages):
        assert "partreduce: step 2: " in text
        assert f"{use} worker {rank}'s own model, not the mean of all" in text
        assert "with optimizer.mean_model():" in text
        assert "optimizer.finish()" in text


@pytest.mark.parametrize("act", [evaluates, saves, saves_submodule, writes])
@pytest.mark.parametrize(
    "schedule",
    [GRADIENTS, PAIRS, Schedule("every 2", Cluster.regular(1, 2), AllReduce(steps_per_round=2))],
    ids=lambda one: one.name,
)
def test_using_equal_live_models_does_not_warn(ranks, schedule, act):
    """Averaged gradients keep models equal; an average over all workers makes them equal until the next step."""
    assert warnings_of(ranks, schedule, act) == []


def test_mean_model_and_forward_with_gradients_do_not_warn(ranks):
    def act(model, optimizer):
        with optimizer.mean_model() if not optimizer.ending.is_finished else warnings.catch_warnings():
            evaluates(model, optimizer)
            saves(model, optimizer)
        model.eval()  # frozen statistics in training
        model(torch.ones(2, 3))
        model.train()

    assert warnings_of(ranks, ONE_OF_THREE, act, n=3) == []


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_copied_and_scripted_models_do_not_warn(ranks):
    def act(model, optimizer):
        other = copy.deepcopy(model)
        for uses in (evaluates, saves, saves_submodule, writes, writes_submodule):
            uses(other, optimizer)
        if not optimizer.ending.is_finished:
            with optimizer.mean_model(), one_at_a_time:  # torch compiles scripts in one thread at a time
                torch.jit.script(model)

    assert warnings_of(ranks, ONE_OF_THREE, act, n=3) == []
