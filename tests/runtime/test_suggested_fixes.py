"""What a message of the runtime tells the user to do is done, and then the script works, without that message.

Each case is one script that runs twice: as somebody writes it who meets the message, and as the message says.
"""

import contextlib
import copy
import warnings
from fractions import Fraction

import pytest
import torch

from helpers.training import build_seeded, group_phases, note_end_of_script
from partreduce import (
    Cluster,
    DistributedOptimizer,
    PartreduceError,
    Schedule,
    load_checkpoint,
    p_reduce,
    save_checkpoint,
)
from partreduce import strategies as st

N = 2
PAIR = group_phases(N, [range(N)])
BOTH = (st.Round.from_edges(N, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]),)
WAYS = {}


def way(says):
    """A case: `script(s, told)`, and the end of what it meets where it is not `told`."""

    def add(script):
        WAYS[script.__name__] = (says, script)
        return script

    return add


def network():
    return build_seeded(lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), 0)


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


class Script:
    """What a script has: a model, and its optimizer once it is wrapped; what it leaves out of training it ends with."""

    def __init__(self, world, folder):
        self.world, self.rank, self.folder = world, world.rank, folder
        self.model, self.optimizer, self.count = network(), None, 2

    def wrap(self, strategy=None, model=None, inner=None, *, n=N, timeout=60, **options):
        self.model = self.model if model is None else model
        schedule = Schedule("ways out", Cluster.regular(1, n), strategy or st.AllReduce(steps_per_round=2))
        inner = inner or sgd(self.model)
        self.optimizer = DistributedOptimizer(inner, self.model, schedule, timeout=timeout, world=self.world, **options)
        return self.optimizer

    def backward(self, step=1):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + self.rank))
        self.model(batch).square().mean().backward()

    def train(self, steps=2, *, before_step=lambda: None):
        for step in range(steps):
            self.optimizer.zero_grad()
            self.backward(step)
            before_step()
            self.optimizer.step()

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)

    def finish(self):
        """Instead of the steps at its end."""
        self.optimizer.finish()
        self.optimizer = None

    def run(self, script, told):
        script(self, told)
        if self.optimizer is not None:
            self.train(self.count)
            self.optimizer.finish()


# The model, before and after it is wrapped.


@way("wrap first and then freeze it for as long as you like")
def freezing(s, told):
    if told:
        s.wrap()
    s.model[1].weight.requires_grad_(requires_grad=False)
    if not told:
        s.wrap()
    s.train()
    s.model[1].weight.requires_grad_(requires_grad=True)


def before_or_after(change):
    """The model is changed before it is wrapped, as the message says, or after."""

    def script(s, told):
        if told:
            change(s.model)
        s.wrap()
        if not told:
            change(s.model)

    return script


def replace_layer(model):
    model[1] = torch.nn.Linear(4, 3)


def replace_parameter(model):
    model[1].bias = torch.nn.Parameter(torch.zeros(2))


WAYS |= {
    "replacing_a_layer": ("change the model first, on all workers, then wrap", before_or_after(replace_layer)),
    "replacing_a_parameter": ("change the model first, then wrap", before_or_after(replace_parameter)),
}


@way("do it before, or write in place, p.data.copy_(...)")
def replacing_storage(s, told):
    s.wrap()
    if told:
        s.model[0].weight.data.copy_(torch.ones(4, 4))
    else:
        s.model[0].weight.data = torch.ones(4, 4)


@way("do it before, or write in place")
def converting(s, told):
    if told:
        s.model.bfloat16()
    s.wrap()
    s.model.bfloat16()
    for _ in range(2):
        s.optimizer.zero_grad()
        s.model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        s.optimizer.step()
    s.finish()


@way("give each its own part of the model")
def two_optimizers(s, told):
    model = s.model
    first, second = s.wrap(model=model[0] if told else model), s.wrap(model=model[1] if told else model)
    s.model = model
    for _ in range(2):
        s.backward()
        first.step()
        second.step()
    first.finish()
    s.finish()


@way("run one forward pass, then wrap")
def a_lazy_layer(s, told):
    s.model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    if told:
        s.model(torch.ones(1, 4))
    s.wrap(inner=torch.optim.SGD(s.model.parameters(), lr=0.1))


@way("call model.to_empty(device=...), initialize it and make the optimizer, then wrap")
def the_meta_device(s, told):
    with torch.device("meta"):
        s.model = torch.nn.Linear(4, 2)
    if told:
        s.model.to_empty(device="cpu")
        s.model.reset_parameters()
    s.wrap()


@way("make it dense, or a buffer if it is a constant")
def a_sparse_parameter(s, told):
    extra = torch.eye(4)
    s.model.register_parameter("extra", torch.nn.Parameter(extra if told else extra.to_sparse()))
    if told:
        s.model.register_buffer("graph", torch.eye(4).to_sparse())
    s.wrap()


@way("so convert it, or freeze it before wrapping")
def a_float8_parameter(s, told):
    eighth = torch.ones(4).to(torch.float8_e4m3fn)
    if told:
        s.model.register_parameter("converted", torch.nn.Parameter(eighth.bfloat16()))
    s.model.register_parameter("extra", torch.nn.Parameter(eighth, requires_grad=not told))
    s.wrap()


@way("let both modules hold one and the same parameter (b.weight = a.weight)")
def shared_memory(s, told):
    s.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    s.model[1].weight = s.model[0].weight if told else torch.nn.Parameter(s.model[0].weight.data)
    s.wrap()


@way("keep its size, or give it the new one on every worker before DistributedOptimizer is made")
def a_buffer_that_grows(s, told):
    s.model.register_buffer("positions", torch.arange(11 if told else 6))
    s.wrap()
    s.model.positions = torch.arange(11)


# The optimizer and its options.


@way("pass the model that the optimizer trains")
def another_models_optimizer(s, told):
    s.wrap(inner=sgd(s.model if told else network()))


@way("wrap the plain optimizer once")
def wrapping_twice(s, told):
    optimizer = s.wrap()
    if not told:
        s.wrap(inner=optimizer)


@way("unfreeze first, then wrap")
def a_group_of_frozen_parameters(s, told):
    s.model[1].requires_grad_(requires_grad=told)
    s.wrap(inner=sgd(s.model[0])).add_param_group({"params": s.model[1].parameters()})


@way("give the optimizer these settings when it is made")
def a_group_with_momentum(s, told):
    inner = torch.optim.SGD(s.model[0].parameters(), lr=0.1, momentum=0.9 if told else 0.0)
    s.wrap(inner=inner, optimizer_state="average")
    s.optimizer.add_param_group({"params": list(s.model[1].parameters()), "momentum": 0.9})


@way("start 3 or design a schedule for 2")
def a_schedule_for_others(s, told):
    s.wrap(n=2 if told else 3)


@way("use 'broadcast', or load the same model on all workers")
def models_that_begin_apart(s, told):
    for initial in ("broadcast", "keep") if told else ("keep",):
        s.model = network()
        if initial == "broadcast" or not told:
            with torch.no_grad():
                s.model[0].weight += s.rank
        s.wrap(st.AllReduce(), initial=initial)
        s.train()
        s.finish()


def options(says, *right, wrong):
    """A case of strategies and options of which each of the right ones works."""

    def script(s, told):
        for strategy, named in right if told else (wrong,):
            s.wrap(strategy, network(), **named)
            s.train()
            s.finish()

    return says, script


LATE, NOW = (st.StaticGroups(phases=PAIR, sync=sync) for sync in (st.DelayedAveraging(), st.Synchronous()))
EDGES = st.NeighborAveraging(rounds=BOTH)
AVERAGE, LOCAL = {"optimizer_state": "average"}, {"optimizer_state": "local"}
WAYS |= {
    "buffers_of_neighbors": options(
        "use 'average' or 'local'",
        (EDGES, {"buffers": "average"}),
        (EDGES, {"buffers": "local"}),
        wrong=(EDGES, {"buffers": "broadcast"}),
    ),
    "states_under_averaged_gradients": options(
        "the states are equal already; use 'local'", (st.AllReduce(), LOCAL), wrong=(st.AllReduce(), AVERAGE)
    ),
    "states_that_come_late": options("use 'local' or no overlap", (LATE, LOCAL), (NOW, AVERAGE), wrong=(LATE, AVERAGE)),
    "outer_state_without_outer_steps": options(
        "has no outer steps, so no anchor; leave it out", (None, {}), wrong=(None, {"outer_state": "host"})
    ),
}


@way("average parameters instead (steps_per_round > 1)")
def lbfgs(s, told):
    s.wrap(st.AllReduce(steps_per_round=2 if told else 1), inner=torch.optim.LBFGS(s.model.parameters(), max_iter=2))

    def closure():
        s.optimizer.zero_grad()
        loss = s.model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        s.optimizer.step(closure)
    s.finish()


@way("is a file; give the path of a directory")
def a_trace_that_is_a_file(s, told):
    path = s.folder / f"trace-{s.rank}"
    if not told:
        path.write_text("")
    s.wrap(trace=path)


# The training loop.


@way("call it before finish() and outside mean_model()")
def a_step_inside_the_mean_model(s, told):
    with s.wrap().mean_model():
        if not told:
            s.train(1)


@way("call it before finish() and outside mean_model()")
def a_checkpoint_after_the_end(s, told):
    optimizer = s.wrap()
    s.train()
    if told:
        save_checkpoint(optimizer, s.folder)
    s.finish()
    if not told:
        save_checkpoint(optimizer, s.folder)


@way("use sparse=False in its embedding")
def a_sparse_gradient(s, told):
    s.wrap(st.AllReduce(), torch.nn.Embedding(5, 2, sparse=not told))
    s.model(torch.tensor([1, 2])).sum().backward()
    s.optimizer.step()
    s.finish()


@way("call optimizer.average_gradients() before it")
def clipping(s, told):
    s.wrap(st.AllReduce())
    s.train(3, before_step=lambda: ((s.optimizer.average_gradients() if told else None), s.clip()))
    s.finish()


@way("call backward() first, then average_gradients()")
def a_gradient_after_the_average(s, told):
    s.wrap(st.AllReduce())
    s.backward()
    if told:
        s.backward(2)
    s.optimizer.average_gradients()
    if not told:
        s.backward(2)
    s.optimizer.step()
    s.finish()


@way("call step() of the DistributedOptimizer")
def the_plain_optimizer(s, told):
    s.wrap(st.AllReduce())
    for _ in range(2):
        s.optimizer.zero_grad()
        s.backward()
        (s.optimizer if told else s.optimizer.optimizer).step()
    s.finish()


@way("call zero_grad() and continue as in every other step instead")
def skipping_where_means_are_clipped(s, told):
    s.wrap(st.AllReduce())
    for step in range(3):
        s.optimizer.zero_grad()
        s.backward(step)
        if step == 2 and not told:
            s.optimizer.skip()
        elif step == 2:
            s.optimizer.zero_grad()
        s.optimizer.average_gradients()
        s.clip()
        s.optimizer.step()
    s.finish()


@way("give that as a function, join(after_averaging=...)")
def clipping_with_uneven_data(s, told):
    s.wrap(st.AllReduce())
    try:
        with s.optimizer.join(s.clip) if told else s.optimizer.join():
            s.train(2 + s.rank, before_step=lambda: (s.optimizer.average_gradients(), s.clip()))
    except PartreduceError:  # as the end of the script does, so that the other need not wait
        note_end_of_script(s.optimizer)
        raise
    s.finish()


@way("not the mean of all; do it inside `with optimizer.mean_model():`")
def saving_the_live_model(s, told):
    s.wrap(st.AllReduce(steps_per_round=3))
    s.train(2)
    with s.optimizer.mean_model() if told else contextlib.nullcontext():
        s.model.state_dict()
    s.count = 1


@way("to continue from what is loaded, call it after that")
def loading_inside_the_mean_model(s, told):
    s.wrap(st.AllReduce(steps_per_round=3))
    state, s.count = copy.deepcopy(s.model.state_dict()), 3
    s.train(3)
    with s.optimizer.mean_model():
        if not told:
            s.model.load_state_dict(state)
    if told:
        s.model.load_state_dict(state)


@way("give one number, or a tensor that holds one")
def logging_a_vector(s, told):
    s.wrap(trace=s.folder)
    s.train()
    s.optimizer.log(loss=torch.tensor(1.0) if told else torch.ones(2))
    s.finish()


@way("give a SummaryWriter, the path of a CSV file or a function")
def a_writer_of_statistics(s, told):
    s.wrap()
    s.train()
    for writer in (s.folder / f"{s.rank}.csv", lambda numbers: None) if told else (3,):
        s.optimizer.stats(writer)
    s.finish()


@way("give a DataLoader or a list of batches")
def batches_of_a_number(s, told):
    assert list(s.wrap().batches([1, 2] if told else 2)) == [1, 2]


# States and checkpoints.


@way("copy optimizer.state_dict(), or optimizer.optimizer, which is the plain one")
def copying_the_optimizer(s, told):
    optimizer = s.wrap()
    for one in (optimizer.state_dict(), optimizer.optimizer) if told else (optimizer,):
        copy.deepcopy(one)


@way("give what state_dict() returned")
def loading_a_models_state(s, told):
    s.wrap().load_state_dict((s.optimizer if told else s.model).state_dict())


@way("pass the DistributedOptimizer first")
def a_checkpoint_of_the_plain_optimizer(s, told):
    optimizer = s.wrap()
    save_checkpoint(optimizer if told else optimizer.optimizer, s.folder)


@way("pass a path")
def a_checkpoint_at_a_number(s, told):
    save_checkpoint(s.wrap(), s.folder if told else 7)


@way("call it where optimizer.steps % 4 == 0, next at step 4")
def a_checkpoint_inside_a_round(s, told):
    optimizer = s.wrap(st.Pairwise(active=(0,), steps_per_round=4))
    s.train(4 if told else 3)
    save_checkpoint(optimizer, s.folder)
    s.count = 4


@way("pass allow_different_run=True to start from the mean model under this schedule")
def a_checkpoint_of_another_schedule(s, told):
    optimizer = s.wrap()
    s.train()
    save_checkpoint(optimizer, s.folder)
    s.finish()
    load_checkpoint(s.wrap(st.AllReduce(steps_per_round=3), network()), s.folder, allow_different_run=told)
    s.count = 3


# P-Reduce.


def reduce_tensors(says, *, wrong, right):
    return says, lambda s, told: p_reduce((right if told else wrong)(), [0, 1], world=s.world)


WAYS |= {
    "p_reduce_of_nothing": reduce_tensors("give at least one", wrong=list, right=lambda: [torch.ones(2)]),
    "p_reduce_of_an_expanded_tensor": reduce_tensors(
        "give a clone() of it", wrong=lambda: torch.ones(1).expand(3), right=lambda: torch.ones(1).expand(3).clone()
    ),
    "p_reduce_of_an_empty_tensor": reduce_tensors(
        "is empty; leave it out", wrong=lambda: [torch.ones(2), torch.empty(0)], right=lambda: [torch.ones(2)]
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_following_the_suggested_fix_works(ranks, tmp_path, name):
    says, script = WAYS[name]
    for told in (False, True):
        folder = tmp_path / str(told)
        folder.mkdir()
        run = lambda world, told=told, folder=folder: Script(world, folder).run(script, told)  # noqa: E731
        with warnings.catch_warnings(record=True, action="always") as warned:
            results = ranks.run(N, run, catch=PartreduceError)
        said = [str(one) for one in results if isinstance(one, Exception)] + [str(one.message) for one in warned]
        if told:
            assert results == [None] * N
            assert not any(says in text for text in said), said
        else:
            assert any(says in text for text in said), said
            ranks.fresh()


def test_at_least_40_suggested_fixes_are_tried():
    assert len(WAYS) >= 40
