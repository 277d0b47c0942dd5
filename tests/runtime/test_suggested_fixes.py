"""A script works and gives no message after the fix that the runtime's message suggests.

Each case is one script that runs twice: first it causes the message, then it follows the suggested fix.
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
FIXES = {}


def fix(words):
    """Register a case: `script(s, fixed)`, and words of its message if it is not `fixed`."""

    def add(script):
        FIXES[script.__name__] = (words, script)
        return script

    return add


def network():
    return build_seeded(lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), 0)


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


class Script:
    """The state of a script: a model, and its optimizer once it is wrapped; `run` ends with the remaining steps."""

    def __init__(self, world, folder):
        self.world, self.rank, self.folder = world, world.rank, folder
        self.model, self.optimizer, self.count = network(), None, 2

    def wrap(self, strategy=None, model=None, inner=None, *, n=N, timeout=60, **options):
        self.model = self.model if model is None else model
        schedule = Schedule("fixes", Cluster.regular(1, n), strategy or st.AllReduce(steps_per_round=2))
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
        """Finish without the steps at the end of `run`."""
        self.optimizer.finish()
        self.optimizer = None

    def run(self, script, fixed):
        script(self, fixed)
        if self.optimizer is not None:
            self.train(self.count)
            self.optimizer.finish()


# The model, before and after it is wrapped.


@fix("wrap first and then freeze it for as long as you like")
def freezing(s, fixed):
    if fixed:
        s.wrap()
    s.model[1].weight.requires_grad_(requires_grad=False)
    if not fixed:
        s.wrap()
    s.train()
    s.model[1].weight.requires_grad_(requires_grad=True)


def before_or_after(change):
    """A script that changes the model before it is wrapped, as the message suggests, or after."""

    def script(s, fixed):
        if fixed:
            change(s.model)
        s.wrap()
        if not fixed:
            change(s.model)

    return script


def replace_layer(model):
    model[1] = torch.nn.Linear(4, 3)


def replace_parameter(model):
    model[1].bias = torch.nn.Parameter(torch.zeros(2))


FIXES |= {
    "replacing_a_layer": ("change the model first, on all workers, then wrap", before_or_after(replace_layer)),
    "replacing_a_parameter": ("change the model first, then wrap", before_or_after(replace_parameter)),
}


@fix("do it before, or write in place, p.data.copy_(...)")
def replacing_storage(s, fixed):
    s.wrap()
    if fixed:
        s.model[0].weight.data.copy_(torch.ones(4, 4))
    else:
        s.model[0].weight.data = torch.ones(4, 4)


@fix("do it before, or write in place")
def converting(s, fixed):
    if fixed:
        s.model.bfloat16()
    s.wrap()
    s.model.bfloat16()
    for _ in range(2):
        s.optimizer.zero_grad()
        s.model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        s.optimizer.step()
    s.finish()


@fix("give each its own part of the model")
def two_optimizers(s, fixed):
    model = s.model
    first, second = s.wrap(model=model[0] if fixed else model), s.wrap(model=model[1] if fixed else model)
    s.model = model
    for _ in range(2):
        s.backward()
        first.step()
        second.step()
    first.finish()
    s.finish()


@fix("run one forward pass, then wrap")
def a_lazy_layer(s, fixed):
    s.model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    if fixed:
        s.model(torch.ones(1, 4))
    s.wrap(inner=torch.optim.SGD(s.model.parameters(), lr=0.1))


@fix("call model.to_empty(device=...), initialize it and make the optimizer, then wrap")
def the_meta_device(s, fixed):
    with torch.device("meta"):
        s.model = torch.nn.Linear(4, 2)
    if fixed:
        s.model.to_empty(device="cpu")
        s.model.reset_parameters()
    s.wrap()


@fix("make it dense, or a buffer if it is a constant")
def a_sparse_parameter(s, fixed):
    extra = torch.eye(4)
    s.model.register_parameter("extra", torch.nn.Parameter(extra if fixed else extra.to_sparse()))
    if fixed:
        s.model.register_buffer("graph", torch.eye(4).to_sparse())
    s.wrap()


@fix("so convert it, or freeze it before wrapping")
def a_float8_parameter(s, fixed):
    eighth = torch.ones(4).to(torch.float8_e4m3fn)
    if fixed:
        s.model.register_parameter("converted", torch.nn.Parameter(eighth.bfloat16()))
    s.model.register_parameter("extra", torch.nn.Parameter(eighth, requires_grad=not fixed))
    s.wrap()


@fix("let both modules hold one and the same parameter (b.weight = a.weight)")
def shared_memory(s, fixed):
    s.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    s.model[1].weight = s.model[0].weight if fixed else torch.nn.Parameter(s.model[0].weight.data)
    s.wrap()


@fix("keep its size, or give it the new one on every worker before DistributedOptimizer is made")
def a_buffer_that_grows(s, fixed):
    s.model.register_buffer("positions", torch.arange(11 if fixed else 6))
    s.wrap()
    s.model.positions = torch.arange(11)


# The optimizer and its options.


@fix("pass the model that the optimizer trains")
def another_models_optimizer(s, fixed):
    s.wrap(inner=sgd(s.model if fixed else network()))


@fix("wrap the plain optimizer once")
def wrapping_twice(s, fixed):
    optimizer = s.wrap()
    if not fixed:
        s.wrap(inner=optimizer)


@fix("unfreeze first, then wrap")
def a_group_of_frozen_parameters(s, fixed):
    s.model[1].requires_grad_(requires_grad=fixed)
    s.wrap(inner=sgd(s.model[0])).add_param_group({"params": s.model[1].parameters()})


@fix("give the optimizer these settings when it is made")
def a_group_with_momentum(s, fixed):
    inner = torch.optim.SGD(s.model[0].parameters(), lr=0.1, momentum=0.9 if fixed else 0.0)
    s.wrap(inner=inner, optimizer_state="average")
    s.optimizer.add_param_group({"params": list(s.model[1].parameters()), "momentum": 0.9})


@fix("start 3 or design a schedule for 2")
def a_schedule_for_others(s, fixed):
    s.wrap(n=2 if fixed else 3)


@fix("use 'broadcast', or load the same model on all workers")
def models_that_begin_apart(s, fixed):
    for initial in ("broadcast", "keep") if fixed else ("keep",):
        s.model = network()
        if initial == "broadcast" or not fixed:
            with torch.no_grad():
                s.model[0].weight += s.rank
        s.wrap(st.AllReduce(), initial=initial)
        s.train()
        s.finish()


def options(words, *right, wrong):
    """A case of strategies and options, of which each right one works."""

    def script(s, fixed):
        for strategy, named in right if fixed else (wrong,):
            s.wrap(strategy, network(), **named)
            s.train()
            s.finish()

    return words, script


LATE, NOW = (st.StaticGroups(phases=PAIR, sync=sync) for sync in (st.DelayedAveraging(), st.Synchronous()))
EDGES = st.NeighborAveraging(rounds=BOTH)
AVERAGE, LOCAL = {"optimizer_state": "average"}, {"optimizer_state": "local"}
FIXES |= {
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


@fix("average parameters instead (steps_per_round > 1)")
def lbfgs(s, fixed):
    s.wrap(st.AllReduce(steps_per_round=2 if fixed else 1), inner=torch.optim.LBFGS(s.model.parameters(), max_iter=2))

    def closure():
        s.optimizer.zero_grad()
        loss = s.model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        s.optimizer.step(closure)
    s.finish()


@fix("is a file; give the path of a directory")
def a_trace_that_is_a_file(s, fixed):
    path = s.folder / f"trace-{s.rank}"
    if not fixed:
        path.write_text("")
    s.wrap(trace=path)


# The training loop.


@fix("call it before finish() and outside mean_model()")
def a_step_inside_the_mean_model(s, fixed):
    with s.wrap().mean_model():
        if not fixed:
            s.train(1)


@fix("call it before finish() and outside mean_model()")
def a_checkpoint_after_the_end(s, fixed):
    optimizer = s.wrap()
    s.train()
    if fixed:
        save_checkpoint(optimizer, s.folder)
    s.finish()
    if not fixed:
        save_checkpoint(optimizer, s.folder)


@fix("use sparse=False in its embedding")
def a_sparse_gradient(s, fixed):
    s.wrap(st.AllReduce(), torch.nn.Embedding(5, 2, sparse=not fixed))
    s.model(torch.tensor([1, 2])).sum().backward()
    s.optimizer.step()
    s.finish()


@fix("call optimizer.average_gradients() before it")
def clipping(s, fixed):
    s.wrap(st.AllReduce())
    s.train(3, before_step=lambda: ((s.optimizer.average_gradients() if fixed else None), s.clip()))
    s.finish()


@fix("call backward() first, then average_gradients()")
def a_gradient_after_the_average(s, fixed):
    s.wrap(st.AllReduce())
    s.backward()
    if fixed:
        s.backward(2)
    s.optimizer.average_gradients()
    if not fixed:
        s.backward(2)
    s.optimizer.step()
    s.finish()


@fix("call step() of the DistributedOptimizer")
def the_plain_optimizer(s, fixed):
    s.wrap(st.AllReduce())
    for _ in range(2):
        s.optimizer.zero_grad()
        s.backward()
        (s.optimizer if fixed else s.optimizer.optimizer).step()
    s.finish()


@fix("call zero_grad() and continue as in every other step instead")
def skipping_where_means_are_clipped(s, fixed):
    s.wrap(st.AllReduce())
    for step in range(3):
        s.optimizer.zero_grad()
        s.backward(step)
        if step == 2 and not fixed:
            s.optimizer.skip()
        elif step == 2:
            s.optimizer.zero_grad()
        s.optimizer.average_gradients()
        s.clip()
        s.optimizer.step()
    s.finish()


@fix("give that as a function, join(after_averaging=...)")
def clipping_with_uneven_data(s, fixed):
    s.wrap(st.AllReduce())
    try:
        with s.optimizer.join(s.clip) if fixed else s.optimizer.join():
            s.train(2 + s.rank, before_step=lambda: (s.optimizer.average_gradients(), s.clip()))
    except PartreduceError:  # as the end of the script does, so that the other need not wait
        note_end_of_script(s.optimizer)
        raise
    s.finish()


@fix("not the mean of all; do it inside `with optimizer.mean_model():`")
def saving_the_live_model(s, fixed):
    s.wrap(st.AllReduce(steps_per_round=3))
    s.train(2)
    with s.optimizer.mean_model() if fixed else contextlib.nullcontext():
        s.model.state_dict()
    s.count = 1


@fix("to continue from what is loaded, call it after that")
def loading_inside_the_mean_model(s, fixed):
    s.wrap(st.AllReduce(steps_per_round=3))
    state, s.count = copy.deepcopy(s.model.state_dict()), 3
    s.train(3)
    with s.optimizer.mean_model():
        if not fixed:
            s.model.load_state_dict(state)
    if fixed:
        s.model.load_state_dict(state)


@fix("give one number, or a tensor that holds one")
def logging_a_vector(s, fixed):
    s.wrap(trace=s.folder)
    s.train()
    s.optimizer.log(loss=torch.tensor(1.0) if fixed else torch.ones(2))
    s.finish()


@fix("give a SummaryWriter, the path of a CSV file or a function")
def a_writer_of_statistics(s, fixed):
    s.wrap()
    s.train()
    for writer in (s.folder / f"{s.rank}.csv", lambda numbers: None) if fixed else (3,):
        s.optimizer.stats(writer)
    s.finish()


@fix("give a DataLoader or a list of batches")
def batches_of_a_number(s, fixed):
    assert list(s.wrap().batches([1, 2] if fixed else 2)) == [1, 2]


# States and checkpoints.


@fix("copy optimizer.state_dict(), or optimizer.optimizer, which is the plain one")
def copying_the_optimizer(s, fixed):
    optimizer = s.wrap()
    for one in (optimizer.state_dict(), optimizer.optimizer) if fixed else (optimizer,):
        copy.deepcopy(one)


@fix("give what state_dict() returned")
def loading_a_models_state(s, fixed):
    s.wrap().load_state_dict((s.optimizer if fixed else s.model).state_dict())


@fix("pass the DistributedOptimizer first")
def a_checkpoint_of_the_plain_optimizer(s, fixed):
    optimizer = s.wrap()
    save_checkpoint(optimizer if fixed else optimizer.optimizer, s.folder)


@fix("pass a path")
def a_checkpoint_at_a_number(s, fixed):
    save_checkpoint(s.wrap(), s.folder if fixed else 7)


@fix("call it where optimizer.steps % 4 == 0, next at step 4")
def a_checkpoint_inside_a_round(s, fixed):
    optimizer = s.wrap(st.Pairwise(active=(0,), steps_per_round=4))
    s.train(4 if fixed else 3)
    save_checkpoint(optimizer, s.folder)
    s.count = 4


@fix("pass allow_different_run=True to start from the mean model under this schedule")
def a_checkpoint_of_another_schedule(s, fixed):
    optimizer = s.wrap()
    s.train()
    save_checkpoint(optimizer, s.folder)
    s.finish()
    load_checkpoint(s.wrap(st.AllReduce(steps_per_round=3), network()), s.folder, allow_different_run=fixed)
    s.count = 3


# P-Reduce.


def reduce_tensors(words, *, wrong, right):
    return words, lambda s, fixed: p_reduce((right if fixed else wrong)(), [0, 1], world=s.world)


FIXES |= {
    "p_reduce_of_nothing": reduce_tensors("give at least one", wrong=list, right=lambda: [torch.ones(2)]),
    "p_reduce_of_an_expanded_tensor": reduce_tensors(
        "give a clone() of it", wrong=lambda: torch.ones(1).expand(3), right=lambda: torch.ones(1).expand(3).clone()
    ),
    "p_reduce_of_an_empty_tensor": reduce_tensors(
        "is empty; leave it out", wrong=lambda: [torch.ones(2), torch.empty(0)], right=lambda: [torch.ones(2)]
    ),
}


@pytest.mark.parametrize("name", FIXES)
def test_following_the_suggested_fix_works(ranks, tmp_path, name):
    words, script = FIXES[name]
    for fixed in (False, True):
        folder = tmp_path / str(fixed)
        folder.mkdir()
        run = lambda world, fixed=fixed, folder=folder: Script(world, folder).run(script, fixed)  # noqa: E731
        with warnings.catch_warnings(record=True, action="always") as warned:
            results = ranks.run(N, run, catch=PartreduceError)
        messages = [str(one) for one in results if isinstance(one, Exception)] + [str(one.message) for one in warned]
        if fixed:
            assert results == [None] * N
            assert not any(words in text for text in messages), messages
        else:
            assert any(words in text for text in messages), messages
            ranks.fresh()


def test_at_least_40_suggested_fixes_are_tried():
    assert len(FIXES) >= 40
