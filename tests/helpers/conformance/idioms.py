"""Small training loops as users write them (idioms), each with its outcome under the kinds where it is not `equal`."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.conformance.cells import ASIDE, TOGETHER
from helpers.conformance.kinds import KINDS
from helpers.training import build_seeded, one_at_a_time
from partreduce import attach

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 6
GRADIENTS = [name for name, kind in KINDS.items() if kind.gradients]
PROGRESS = [name for name, kind in KINDS.items() if kind.in_turn or kind.late or kind.outer]
EARLY = [name for name, kind in KINDS.items() if kind.early]
WHOLE = [name for name in GRADIENTS if name not in EARLY]
QUORUMS = [name for name, kind in KINDS.items() if kind.quorum]
PIPELINES = [name for name, kind in KINDS.items() if kind.lag]
APART = [
    name
    for name, kind in KINDS.items()
    if not kind.gradients and (kind.steps_of(0) == 1 or kind.strategy.payload.num_fragments > 1)
]
"""Kinds whose workers hold different models after four steps.

With two steps per round all workers have just averaged; with fragments they are never all equal.
"""


@dataclass(frozen=True)
class Outcome:
    """How a cell ends: `equal` to plain torch, or `refused` or `warned` with one line that contains `words`."""

    verdict: str
    words: str = ""
    why: str = ""
    compared: bool = False
    """For `warned`: whether the numbers are still those of plain torch."""


EQUAL = Outcome("equal")
refused, warned = (partial(Outcome, verdict) for verdict in ("refused", "warned"))


@dataclass(frozen=True)
class Idiom:
    """A training loop, and its description in the table."""

    loop: Callable
    says: str
    otherwise: dict[str, Outcome] = field(default_factory=dict)
    in_group: bool = False
    """Whether the loop uses a default process group, which then contains this process only."""

    def outcome(self, kind):
        return self.otherwise.get(kind, EQUAL)


IDIOMS: dict[str, Idiom] = {}


def idiom(name, says, *, in_group=False, **otherwise):
    """Register a training loop; each value of `otherwise` is (kinds, outcome), under any name."""

    def register(loop):
        outcomes = {kind: outcome for kinds, outcome in otherwise.values() for kind in kinds}
        IDIOMS[name] = Idiom(loop, says, outcomes, in_group)
        return loop

    return register


def network(seed=1, *, tied=False):
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
        if tied:
            model.append(torch.nn.Linear(3, 4, bias=False).double())
            model[3].weight = model[0].weight
        return model

    return build_seeded(make, seed)


def batch(rank, step, part=0):
    seed = 1000 * rank + 10 * step + part
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def begin(cell, make=sgd, **options):
    model = network(**options)
    return model, cell.wrap(make(model), model)


def step(cell, optimizer, model, number, *, before=lambda: None, loss=loss_of):
    optimizer.zero_grad()
    loss(model, batch(cell.rank, number)).backward()
    before()
    optimizer.step()
    cell.note(model)


def steps(cell, optimizer, model, act=None, numbers=range(STEPS), *, after=lambda _: None):
    """Take a step for each number, by `act(number)` if given, and call `after(number)` after each."""
    for number in numbers:
        yield
        step(cell, optimizer, model, number) if act is None else act(number)
        after(number)


def finish(cell, optimizer, model):
    yield TOGETHER
    optimizer.finish()
    cell.note(model)


def run(cell, optimizer, model, act=None, numbers=range(STEPS), **options):
    yield from steps(cell, optimizer, model, act, numbers, **options)
    yield from finish(cell, optimizer, model)


@idiom("plain", "zero_grad, backward, step with momentum")
def plain(cell):
    model, optimizer = begin(cell)
    yield from run(cell, optimizer, model)


@idiom("adam", "AdamW with two parameter groups")
def adam(cell):
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = cell.wrap(torch.optim.AdamW(groups, lr=0.03), model)
    yield from run(cell, optimizer, model)


@idiom(
    "accumulation",
    "two backward passes a step, gradients zeroed in place",
    early=(EARLY, refused("got a gradient a second time before step()", "the first has left by then")),
)
def accumulation(cell):
    model, optimizer = begin(cell)

    def act(number):
        optimizer.zero_grad(set_to_none=False)
        for part in range(2):
            (loss_of(model, batch(cell.rank, number, part)) / 2).backward()
        optimizer.step()
        cell.note(model)

    yield from run(cell, optimizer, model, act)


@idiom(
    "clipping",
    "`average_gradients()`, then `clip_grad_norm_`",
    several=(QUORUMS, refused("a call may deliver several", "give it as a function to `join()`, too")),
)
def clipping(cell):
    model, optimizer = begin(cell)

    def clip():
        optimizer.average_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    yield from run(cell, optimizer, model, lambda number: step(cell, optimizer, model, number, before=clip))


@idiom(
    "clipping alone",
    "`clip_grad_norm_` without `average_gradients()`",
    averaged=(
        WHOLE,
        warned("call optimizer.average_gradients() before it", "each clips its own gradient; DDP the mean"),
    ),
    early=(EARLY, refused("was changed after backward(), when it had left", "clip the averaged ones")),
)
def clipping_alone(cell):
    model, optimizer = begin(cell)

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    yield from run(cell, optimizer, model, lambda number: step(cell, optimizer, model, number, before=clip))


@idiom(
    "GradScaler",
    "a scaled loss; one worker meets an infinite gradient",
    early=(EARLY, refused("divides gradients after backward()", "they have left by then")),
)
def scaler(cell):
    model, optimizer = begin(cell)
    scale = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)

    def act(number):
        optimizer.zero_grad()
        loss = loss_of(model, batch(cell.rank, number)) * (float("inf") if (cell.rank, number) == (1, 2) else 1.0)
        scale.scale(loss).backward()
        cell.scaler_step(scale, optimizer)
        cell.note(model)

    yield from run(cell, optimizer, model, act)


def by_closure(cell, optimizer, model, numbers=range(STEPS)):
    def act(number):
        def evaluate():
            optimizer.zero_grad()
            loss = loss_of(model, batch(cell.rank, number))
            loss.backward()
            return loss

        optimizer.step(evaluate)
        cell.note(model)

    yield from run(cell, optimizer, model, act, numbers)


@idiom("closure", "`step(closure)` with SGD")
def closure(cell):
    model, optimizer = begin(cell)
    yield from by_closure(cell, optimizer, model)


@idiom(
    "LBFGS",
    "an optimizer that evaluates its closure several times",
    averaged=(GRADIENTS, refused("LBFGS evaluates its closure several times", "average parameters instead")),
)
def lbfgs(cell):
    model, optimizer = begin(cell, lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2))
    yield from by_closure(cell, optimizer, model, range(4))


@idiom("LR scheduler", "warm-up and steps, chained")
def schedulers(cell):
    model, optimizer = begin(cell)
    target = cell.scheduled(optimizer)
    rates = [torch.optim.lr_scheduler.LinearLR(target, 0.2, total_iters=3), torch.optim.lr_scheduler.StepLR(target, 2)]

    def after(_):
        for rate in rates:
            rate.step()

    yield from run(cell, optimizer, model, after=after)


@idiom("attach", "the script's own optimizer steps, with a closure, a scheduler and a hook; `attach` has its schedule")
def attach_schedule(cell):
    model, steps = network(), []
    own = sgd(model)
    follows = cell.wrap(own, model, by=attach)
    own.register_step_post_hook(lambda *_: steps.append(1))
    scheduler = torch.optim.lr_scheduler.StepLR(own, step_size=2, gamma=0.5)
    stepping = follows if cell.world is None else own

    def act(number):
        def evaluate():
            own.zero_grad()
            loss = loss_of(model, batch(cell.rank, number))
            loss.backward()
            return loss

        stepping.step(evaluate)
        scheduler.step()
        cell.note(model)

    yield from run(cell, follows, model, act)
    assert len(steps) >= STEPS  # a pipeline takes one more, at its end


@idiom("EMA", "`AveragedModel` of the model")
def ema(cell):
    model, optimizer = begin(cell)
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, _: 0.8 * old + 0.2 * new)

    def after(_):
        average.update_parameters(model)
        cell.note(average)

    yield from run(cell, optimizer, model, after=after)


@idiom("tied weights", "one parameter in two layers")
def tied(cell):
    model, optimizer = begin(cell, tied=True)

    def loss(model, x):
        return (model[:3](x) - model[3](x).sum(1, keepdim=True) - x.sum(1, keepdim=True)).square().mean()

    yield from run(cell, optimizer, model, lambda number: step(cell, optimizer, model, number, loss=loss))


@idiom(
    "tied by memory",
    "a transposed weight as another parameter, `Parameter(a.weight.t())`",
    all=(KINDS, refused("two tensors in one memory", "wrapping would part them")),
)
def tied_by_memory(cell):
    model = network()
    model.back = torch.nn.Module()
    model.back.weight = torch.nn.Parameter(model[0].weight.t())
    cell.wrap(sgd(model), model)
    yield


@idiom("kept views", "`p.detach()` and NumPy views of parameters, taken once and read after every step")
def kept_views(cell):
    model, optimizer = begin(cell)
    views = [(p.detach(), p.detach().numpy()) for p in model.parameters()]

    def after(_):
        for kind in zip(*views, strict=True):
            cell.notes.append(torch.cat([torch.as_tensor(view).reshape(-1).clone() for view in kind]))

    yield from run(cell, optimizer, model, after=after)


@idiom("buffers", "a mask of −∞, an expanded and a sparse buffer, and frozen weights in 8 bits, all constant")
def buffers(cell):
    model = network()
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    model.register_buffer("repeated", torch.tril(torch.ones(3, 3)).expand(2, 3, 3))
    model.register_buffer("graph", torch.eye(3).to_sparse())
    model.levels = torch.nn.Parameter(torch.arange(4, dtype=torch.int8), requires_grad=False)
    optimizer = cell.wrap(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05), model)

    def after(_):
        cell.notes += [one.to_dense().double().reshape(-1) for one in model.buffers()]

    yield from run(cell, optimizer, model, after=after)


@idiom("frozen weights", "a layer frozen at wrapping; another frozen and unfrozen in mid-run")
def frozen(cell):
    model = network()
    model[0].bias.requires_grad_(requires_grad=False)
    optimizer = cell.wrap(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05), model)

    def act(number):
        model[2].weight.requires_grad_(requires_grad=not 1 < number < 4)
        step(cell, optimizer, model, number)

    yield from run(cell, optimizer, model, act)


@idiom(
    "unfreezing",
    "a layer frozen at wrapping, trained later",
    all=(KINDS, refused("wrap first and then freeze it", "it would not be averaged")),
)
def unfreezing(cell):
    model = network()
    model[0].bias.requires_grad_(requires_grad=False)
    optimizer = cell.wrap(sgd(model), model)
    yield
    model[0].bias.requires_grad_(requires_grad=True)
    step(cell, optimizer, model, 0)


@idiom(
    "teacher",
    "a frozen part that follows the model by moving averages, as in BYOL, MoCo and DINO",
    apart=(
        [name for name, kind in KINDS.items() if not kind.gradients],
        warned("frozen when DistributedOptimizer was made, has changed", "wrap first and then freeze it"),
    ),
)
def teacher(cell):
    model = network()
    model.teacher = copy.deepcopy(model[0]).requires_grad_(requires_grad=False)
    optimizer = cell.wrap(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05), model)

    def act(number):
        step(cell, optimizer, model, number, loss=lambda model, x: loss_of(model[:3], x))
        with torch.no_grad():
            for mine, followed in zip(model.teacher.parameters(), model[0].parameters(), strict=True):
                mine.data = 0.9 * mine.data + 0.1 * followed.data
        cell.note(model)

    yield from run(cell, optimizer, model, act)


@idiom(
    "several optimizers",
    "two models that are trained in turn, as in a GAN",
    generated=(["dynamic_groups"], refused("hands out groups for one optimizer", "its groups would mix the two")),
)
def several(cell):
    models = [network(), network(2)]
    optimizers = [cell.wrap(sgd(model), model) for model in models]
    for number in range(4):
        yield
        for model, optimizer in zip(models, optimizers, strict=True):
            step(cell, optimizer, model, number)
    for model, optimizer in zip(models, optimizers, strict=True):
        yield from finish(cell, optimizer, model)


@idiom(
    "one model, two optimizers",
    "each wrapped, with the whole model",
    all=(KINDS, refused("another DistributedOptimizer was made of it", "give each its part of the model")),
    generated=(["dynamic_groups"], refused("hands out groups for one optimizer", "give each its part of the model")),
)
def wrapped_twice(cell):
    model = network()
    optimizers = [cell.wrap(torch.optim.SGD(part.parameters(), lr=0.05), model) for part in (model[0], model[2])]
    yield
    step(cell, optimizers[0], model, 0)


@idiom(
    "plain optimizer kept",
    "`step()` of the optimizer that was wrapped, as SAM's `second_step()` and `scaler.step(plain)` do",
    all=(KINDS, refused("was stepped by itself", "the schedule would not see it")),
)
def plain_kept(cell):
    model = network()
    plain = sgd(model)
    cell.wrap(plain, model)
    yield
    step(cell, plain, model, 0)


@idiom(
    "another optimizer first",
    "a part of the model stepped by another optimizer, before `step()`, as from hooks in `backward()`",
    averaged=(GRADIENTS, refused("which is still to be averaged", "call `average_gradients()` before it")),
    opens=(
        [name for name, kind in KINDS.items() if kind.outer or kind.free == "server"],
        refused("measures from the model with which all begin", "the first time, step it after `step()`"),
    ),
)
def another_first(cell):
    model = network()
    optimizer = cell.wrap(torch.optim.SGD(model[0].parameters(), lr=0.05), model)
    other = torch.optim.SGD(model[2].parameters(), lr=0.1)
    yield from run(cell, optimizer, model, lambda number: step(cell, optimizer, model, number, before=other.step))


@idiom("another optimizer after", "the same after `step()`, where its gradients are means already")
def another_after(cell):
    model = network()
    optimizer = cell.wrap(torch.optim.SGD(model[0].parameters(), lr=0.05), model)
    other = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def after(_):
        other.step()
        cell.note(model)

    yield from run(cell, optimizer, model, after=after)


class Sharpness(torch.optim.SGD):
    """SAM (Foret et al., 2021), which evaluates its closure at perturbed weights."""

    @torch.no_grad()
    def step(self, closure):
        held = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in held]
        for p in held:
            p.add_(p.grad, alpha=0.1)
        with torch.enable_grad():
            self.zero_grad()
            loss = closure()
        for p, value in zip(held, before, strict=True):
            p.copy_(value)
        super().step()
        return loss


@idiom(
    "SAM",
    "an optimizer that moves the weights before it evaluates its closure",
    averaged=(WHOLE, refused("or after it has changed the model", "gradients of one evaluation are averaged")),
    early=(EARLY, refused("got a gradient a second time before step()", "the first has left by then")),
)
def sharpness(cell):
    model, optimizer = begin(cell, lambda model: Sharpness(model.parameters(), lr=0.05))

    def act(number):
        def evaluate():
            loss = loss_of(model, batch(cell.rank, number))
            loss.backward()
            return loss

        optimizer.zero_grad()
        evaluate()
        optimizer.step(evaluate)
        cell.note(model)

    yield from run(cell, optimizer, model, act)


@idiom(
    "rates apart",
    "a learning rate that one worker alone lowers, as ReduceLROnPlateau does by each worker's own loss",
    averaged=(
        [name for name in GRADIENTS if name not in QUORUMS],
        refused("models stay equal only where all take equal steps", "they would part"),
    ),
    quorum=(QUORUMS, warned("with different settings of the optimizer", "models have parted")),
)
def rates_apart(cell):
    model, optimizer = begin(cell)

    def act(number):
        if number == 2 and cell.rank == 1:
            optimizer.param_groups[0]["lr"] = 0.025
        step(cell, optimizer, model, number)

    yield from run(cell, optimizer, model, act, range(4))


@idiom(
    "weights apart",
    "weights that each worker changes by its own numbers, such as noise",
    averaged=(GRADIENTS, warned("model is not the mean of all", "they stay apart; said where all meet", compared=True)),
)
def weights_apart(cell):
    model, optimizer = begin(cell)

    def after(number):
        with torch.no_grad():
            model[0].weight.add_(0.01 * batch(cell.rank, number)[:4])

    yield from run(cell, optimizer, model, after=after)


@idiom("inference mode", "`mean_model()` and `finish()` inside `torch.inference_mode()`, before the first step, too")
def inference(cell):
    model, optimizer = begin(cell)
    for numbers in (range(3), range(3, 6)):
        yield TOGETHER
        with torch.inference_mode(), optimizer.mean_model():
            cell.notes.append(model(batch(0, 0)).clone().reshape(-1))
        yield from steps(cell, optimizer, model, numbers=numbers)
    yield TOGETHER
    with torch.inference_mode():
        optimizer.finish()
    cell.note(model)


@idiom("default device", "`torch.set_default_device`: one where no number is, around all but the script's own work")
def default_device(cell):
    model = network()
    elsewhere = torch.device("cpu" if cell.world is None else "meta")
    with elsewhere:
        optimizer = cell.wrap(sgd(model), model)

    def act(number):
        optimizer.zero_grad()
        loss_of(model, batch(cell.rank, number)).backward()
        with elsewhere:
            optimizer.step()
        cell.note(model)

    yield from steps(cell, optimizer, model, act)
    yield TOGETHER
    with elsewhere:
        optimizer.finish()
    cell.note(model)


@idiom(
    "loaded in mean_model()",
    "`model.load_state_dict` inside it, as of averaged weights",
    all=(KINDS, warned("lasts until its end", "the run continues from before", compared=True)),
)
def loaded_inside(cell):
    model, optimizer = begin(cell)
    saved = copy.deepcopy(model.state_dict())
    yield from steps(cell, optimizer, model, numbers=range(4))
    yield TOGETHER
    with optimizer.mean_model():
        model.load_state_dict(saved)
    cell.note(model)
    yield from run(cell, optimizer, model, numbers=range(4, STEPS))


@idiom("skipped step", "one worker's `skip()`, as NaN guards do; before `backward()` where gradients leave during it")
def skip_step(cell):
    model, optimizer = begin(cell)

    def act(number):
        optimizer.zero_grad()
        skips = (cell.rank, number) == (1, 2)
        if not (skips and cell.kind.early):
            loss_of(model, batch(cell.rank, number)).backward()
        if skips:
            optimizer.skip()
        else:
            optimizer.step()
        cell.note(model)

    yield from run(cell, optimizer, model, act)


@idiom("weight clamping", "parameters clamped in place after each step, as in a WGAN")
def clamping(cell):
    model, optimizer = begin(cell)

    def after(_):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.3, 0.3)
        cell.note(model)

    yield from run(cell, optimizer, model, after=after)


@idiom("evaluation", "`mean_model()` in mid-run, between gradients that stay")
def evaluation(cell):
    model, optimizer = begin(cell)
    yield from steps(cell, optimizer, model, numbers=range(4))
    optimizer.zero_grad(set_to_none=False)
    yield TOGETHER
    with optimizer.mean_model():
        cell.note(model)
    cell.note(model)
    yield from run(cell, optimizer, model, numbers=range(4, STEPS))


@idiom("saving", "a copy of `model.state_dict()` of the mean, trained on by itself afterwards")
def saving(cell):
    model, optimizer = begin(cell)
    yield from steps(cell, optimizer, model, numbers=range(4))
    yield TOGETHER
    with optimizer.mean_model():
        saved = copy.deepcopy(model.state_dict())
    optimizer.finish()
    cell.note(model)
    other = network(3)
    other.load_state_dict(saved)
    inner = sgd(other)
    loss_of(other, batch(0, 0)).backward()
    inner.step()
    cell.note(other)


@idiom(
    "checkpoint",
    "`save_checkpoint` in mid-run, and a new optimizer that resumes from it by `load_checkpoint`",
    generated=(
        ["dynamic_groups"],
        refused("belongs to another process of this job", "its generator serves one optimizer; resume in a new job"),
    ),
)
def checkpoint(cell):
    model, optimizer = begin(cell)
    yield from steps(cell, optimizer, model, numbers=range(3))
    yield TOGETHER
    model, optimizer = cell.reopened(model, optimizer, lambda: begin(cell, seed=2))
    yield from run(cell, optimizer, model, numbers=range(3, STEPS))


@idiom(
    "rollback",
    "model and optimizer loaded from two rounds ago",
    apart=(APART, warned("'s own model", "each loads its own again", compared=True)),
)
def rollback(cell):
    model, optimizer = begin(cell)
    yield from steps(cell, optimizer, model, numbers=range(4))
    yield TOGETHER
    saved, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    yield from steps(cell, optimizer, model, numbers=range(4, 6))
    yield TOGETHER
    model.load_state_dict(saved)
    optimizer.load_state_dict(state)
    yield from run(cell, optimizer, model, numbers=range(6, 10))


@idiom(
    "model loaded alone",
    "`model.load_state_dict` in mid-run, without the optimizer's",
    progress=(PROGRESS, refused("would send the difference to the others as progress", "load both")),
    late=([*PIPELINES, *QUORUMS], refused("would apply gradients to it that were taken at other", "load both")),
)
def loading(cell):
    model, optimizer = begin(cell)
    saved = copy.deepcopy(model.state_dict())

    def act(number):
        if number == 2:
            model.load_state_dict(saved)
        step(cell, optimizer, model, number)

    yield from run(cell, optimizer, model, act, range(4))


@idiom(
    "live model",
    "`model.eval()` with a forward pass, and `model.state_dict()`, in mid-run",
    apart=(APART, warned("'s own model", "it is one worker's, not the mean", compared=True)),
)
def live(cell):
    model, optimizer = begin(cell)

    def after(number):
        if number == 3:
            model.eval()
            with torch.no_grad():
                model(batch(cell.rank, number))
            model.train()
            model.state_dict()

    yield from run(cell, optimizer, model, after=after)


@idiom("gradients by hand", "`torch.autograd.grad`; views of one array and an expanded number put into `.grad`")
def by_hand(cell):
    model, optimizer = begin(cell)
    parameters = list(model.parameters())

    def act(number):
        found = torch.autograd.grad(loss_of(model, batch(cell.rank, number)), parameters)
        whole = torch.cat([gradient.reshape(-1) for gradient in found])
        for parameter, part in zip(parameters, whole.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view(parameter.shape)
        model[0].bias.grad = found[1].mean().expand(4)
        model[2].weight.grad = found[2]
        optimizer.step()
        cell.note(model)

    yield from run(cell, optimizer, model, act)


@idiom(
    "ZeroRedundancyOptimizer",
    "torch's sharded optimizer as the inner one",
    in_group=True,
    all=(KINDS, refused("ZeroRedundancyOptimizer steps its share", "it writes other workers' parameters")),
)
def zero(cell):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch uses its own torch.jit there
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = network()
    cell.wrap(ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05), model)
    yield


@idiom(
    "DDP elsewhere",
    "the forward pass through a `DistributedDataParallel`, the bare model given to us (Accelerate, Lightning)",
    in_group=True,
    all=(KINDS, refused("runs inside a DistributedDataParallel", "gradients are averaged already")),
)
def ddp(cell):
    model, optimizer = begin(cell)
    yield
    with one_at_a_time:  # torch notes for the whole process which wrapper is running
        loss_of(DistributedDataParallel(model), batch(cell.rank, 0)).backward()
    optimizer.step()


@idiom("uneven data", "`join()`; the first worker has two batches fewer")
def uneven(cell):
    model, optimizer = begin(cell, lambda model: torch.optim.SGD(model.parameters(), lr=0.05))
    batches = (STEPS - 2, STEPS, STEPS)
    with cell.join(optimizer, batches):
        for number in range(batches[cell.rank]):
            yield
            optimizer.zero_grad()
            loss_of(model, batch(cell.rank, number)).backward()
            optimizer.step()
        yield ASIDE
    yield from finish(cell, optimizer, model)


@idiom(
    "deepcopy", "`copy.deepcopy(optimizer)`", all=(KINDS, refused("belongs to a running job", "copy its state_dict()"))
)
def deepcopy(cell):
    model = network()
    copy.deepcopy(cell.wrap(sgd(model), model))
    yield


@idiom("torch.compile", "a compiled model (the `eager` backend)")
def compile_model(cell):
    model, optimizer = begin(cell)
    with one_at_a_time:
        faster = torch.compile(model, backend="eager", fullgraph=True)
        faster(batch(0, 0))

    def act(number):
        step(cell, optimizer, model, number, loss=lambda _, x: loss_of(faster, x))

    yield from run(cell, optimizer, model, act, range(4))


@idiom("torch.compile of the step", "a compiled function of `zero_grad`, forward, `backward` and `step`")
def compiled_step(cell):
    model, graphs = network(), []

    def whole(x):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    def note_graph(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    if cell.world is not None:  # before the first barrier: no worker compiles yet
        torch.compiler.reset()
        whole = torch.compile(whole, backend=note_graph)
    optimizer = cell.wrap(sgd(model), model)

    def act(number):
        whole(batch(cell.rank, number))
        cell.note(model)

    yield from steps(cell, optimizer, model, act, range(4))
    assert bool(graphs) == (cell.world is not None)
    yield from finish(cell, optimizer, model)
