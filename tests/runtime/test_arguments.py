"""Wrong arguments raise a one-line error before any other worker is contacted."""

import copy
from fractions import Fraction

import pytest
import torch

import partreduce
from helpers.thread_ranks import on_ranks
from helpers.training import static_groups, wrap
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st
from partreduce.errors import InputError
from partreduce.runtime.arguments import checked_number

PAIR = Schedule("pair", Cluster.regular(1, 2), static_groups(2, [range(2)]))


def make_optimizer(world, make=None, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    return model, wrap(world, model, PAIR, make and make(model), **options)


def train(model, optimizer, rank, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + rank)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e12, "5", True, None], ids=str)
def test_invalid_timeouts_raise(timeout):
    """A deadline of NaN seconds never passes, and one of 0 or less has passed before the first answer."""
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    words = "timeout: is .*; it is a number of seconds above 0|timeout: expected float, got "
    with pytest.raises(InputError, match=words):
        DistributedOptimizer(inner, model, PAIR, timeout=timeout)
    with pytest.raises(InputError, match=words):
        partreduce.p_reduce([torch.ones(2)], [0, 1], timeout=timeout)
    with pytest.raises(InputError, match=words):
        partreduce.ScheduleHookState(PAIR, timeout=timeout)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "7"}, "RANK is 7 and WORLD_SIZE is 2; ranks are 0..1"),
        ({"RANK": "-1"}, "RANK is '-1'; it is a number in 0..2147483647"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; it is a number in 1..2147483647"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is '65536'; it is a number in 1..65535"),
    ],
    ids=str,
)
def test_invalid_launcher_environment_raises(monkeypatch, variables, words):
    """A rank above WORLD_SIZE once waited for all workers until its timeout."""
    started = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name, value in (started | variables).items():
        monkeypatch.setenv(name, value)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match=f"environment: {words}"):
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, PAIR, timeout=5)


def test_wrong_types_of_model_schedule_and_optimizer_raise(tmp_path):
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"model: is a generator; pass the torch\.nn\.Module"):
        DistributedOptimizer(inner, model.parameters(), PAIR)
    for schedule, kind in ((None, "NoneType"), ({}, "dict"), (b"{}", "bytes")):
        with pytest.raises(InputError, match=f"schedule: is a {kind}; pass the path"):
            DistributedOptimizer(inner, model, schedule)
    with pytest.raises(InputError, match=r'is no file, but a name .* --build "allreduce\(every=4\)" -o allreduce.json'):
        DistributedOptimizer(inner, model, "allreduce(every=4)")
    with pytest.raises(InputError, match="must be str or bytes"):
        partreduce.files.parse_schedule(3)
    with pytest.raises(InputError, match="save_checkpoint: optimizer is a PosixPath; pass the DistributedOptimizer"):
        partreduce.save_checkpoint(tmp_path, inner)
    with pytest.raises(InputError, match="load_checkpoint: optimizer is a SGD"):
        partreduce.load_checkpoint(inner, tmp_path)


def wrap_linear(**options):
    model = torch.nn.Linear(2, 2)
    return DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, PAIR, **options)


def embeddings(optimizer=None, wrapper=lambda model: model):
    model = torch.nn.Sequential(torch.nn.Embedding(9, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return partreduce.parallelize_embeddings(wrapper(model), optimizer or inner, "1x2", batches=[torch.tensor([1])])


def in_ddp(model):
    wrapper = torch.nn.parallel.DistributedDataParallel
    return wrapper.__new__(wrapper)  # its __init__ needs a process group, and the type alone is checked


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wrap_linear(trace=3), "trace: is an int; give the path of a directory"),
        (lambda: wrap_linear(world="here"), "world: is 'here'; leave it out"),
        (lambda: wrap_linear(trace="nowhere").log(loss="low"), "log: loss: is 'low'; give one number"),
        (
            lambda: partreduce.clip_grad_norm_(None, 1.0),
            "clip_grad_norm_: parameters: expected Tensor or Iterable, got None",
        ),
        (lambda: partreduce.clip_grad_norm_([], "one"), "clip_grad_norm_: max_norm: expected float, got str 'one'"),
        (lambda: embeddings(optimizer=[3]), "optimizer: is a list; it must be one torch.optim.Optimizer"),
        (lambda: embeddings(wrapper=in_ddp), "model: is wrapped in DistributedDataParallel, .*; pass the bare module"),
        (lambda: partreduce.design(8, build="ring"), "cluster: is an int; write it as '2x4', or name a cluster file"),
        (
            lambda: partreduce.design("2x2", build=None),
            "design: build: expected a catalogue entry for cluster 2x2, got none",
        ),
        (lambda: partreduce.verify("schedule.json"), r"verify: is a str; .* partreduce\.load_schedule\(path\)"),
        (lambda: partreduce.load_schedule(None), "load_schedule: is a NoneType; give the path of a schedule file"),
        (lambda: partreduce.write_schedule(PAIR, "x.json"), "write_schedule: path: expected str or path, got Schedule"),
        (lambda: partreduce.simulate("schedule.json"), "simulate: schedule: expected Schedule, got str"),
        (lambda: partreduce.simulate(PAIR, "fast"), "simulate: hardware: expected Hardware or None, got str"),
        (lambda: partreduce.Link.of_bandwidth("1GB/s"), "link: bandwidth: is a str; give bytes per second"),
    ],
)
def test_wrong_arguments_raise_with_place_value_and_fix(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("tensors", "group", "options", "words"),
    [
        ([torch.ones(2)], [0, 1.5], {}, r"group is '\[0, 1\.5\]'; it lists the ranks"),
        ([torch.ones(2)], "01", {}, "group: expected Group or Iterable, got str '01'"),
        ([torch.ones(2)], 3, {}, "group: expected Group or Iterable, got int 3"),
        ([torch.ones(2)], [0, 1], {"relaxation": float("nan")}, "relaxation is 'nan'; it is a finite number"),
        ([torch.ones(2)], [0, 1], {"relaxation": "x"}, "relaxation: expected float or Fraction or None, got str 'x'"),
        (["x"], [0, 1], {}, "tensor 0 is a str"),
    ],
    ids=str,
)
def test_p_reduce_rejects_invalid_arguments(tensors, group, options, words):
    """A relaxation of NaN once turned all tensors into NaN, and a group of fractions waited until its timeout."""
    with pytest.raises(InputError, match=f"p_reduce: {words}"):
        partreduce.p_reduce(tensors, group, **options)


@pytest.mark.parametrize(
    "saved", [7, {}, [1], {"steps": -5}, {"steps": "x"}, {"steps": 1.5}, {"steps": 2**60}], ids=str
)
@on_ranks(2, [3, 3])
def test_state_dict_without_a_step_count_is_rejected_before_loading(world, saved):
    model, optimizer = make_optimizer(world)
    train(model, optimizer, world.rank)
    state = copy.deepcopy(optimizer.state_dict()) | {"partreduce": saved}
    with pytest.raises(InputError, match=r"load_state_dict: 'partreduce' is .*; it holds steps, a whole number >= 0"):
        optimizer.load_state_dict(state)
    optimizer.finish()
    return optimizer.steps


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda m: torch.optim.SGD([{"params": m.parameters(), "momentum": 0.9}], lr=0.1), "momentum_buffer"),
        (lambda m: torch.optim.Adam([{"params": m.parameters(), "amsgrad": True}], lr=0.1), "max_exp_avg_sq"),
    ],
    ids=["momentum", "amsgrad"],
)
def test_optimizer_state_of_every_parameter_group_is_averaged(ranks, make, key):
    """State that only a group's own settings create was once silently not averaged."""

    def work(world):
        model, optimizer = make_optimizer(world, make, optimizer_state="average")
        train(model, optimizer, world.rank)
        kept = [optimizer.optimizer.state[p][key].tolist() for p in model.parameters()]
        optimizer.finish()
        return kept

    first, second = ranks.run(2, work)
    assert first == second


def test_optimizer_state_of_other_shapes_is_rejected():
    model = torch.nn.Linear(4, 3)
    inner = torch.optim.Adafactor(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"Adafactor keeps col_var, row_var in other shapes .*'local'"):
        DistributedOptimizer(inner, model, PAIR, optimizer_state="average")


@on_ranks(2, [(2, True)] * 2)
def test_added_parameter_group_may_be_a_generator(world):
    """A check once consumed the generator, and an empty group was silently added."""
    model, optimizer = make_optimizer(world, lambda m: torch.optim.SGD([m[0].weight], lr=0.1))
    before = model[1].weight.detach().clone()
    optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.5})
    train(model, optimizer, world.rank)
    optimizer.finish()
    return len(optimizer.param_groups[1]["params"]), not torch.equal(before, model[1].weight)


EDGES = st.Round.from_edges(2, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))])


@pytest.mark.parametrize(
    "strategy",
    [
        st.Pairwise(active=(0,)),
        st.Server(synchronous=False),
        st.NeighborAveraging(rounds=(EDGES,), sync=st.IterationGap()),
    ],
    ids=lambda strategy: strategy.kind,
)
def test_averaged_optimizer_state_without_global_rounds_is_rejected(ranks, strategy):
    def work(world):
        model = torch.nn.Linear(2, 2)
        wrap(world, model, strategy, torch.optim.Adam(model.parameters()), optimizer_state="average")

    ranks.fresh()
    for error in ranks.run(2, work, catch=InputError):
        assert "optimizer_state='average'" in str(error)
        assert "use 'local'" in str(error)


def test_numbers_keep_double_precision():
    assert checked_number("log", 1796100000.123) == 1796100000.123
