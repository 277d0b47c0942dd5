"""Check what a script does while it trains; most checks read `Facts`, the state of one run."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from partreduce.runtime.averaging.bucket import Slot
from partreduce.runtime.averaging.flat_model import digest_of, state_keys
from partreduce.runtime.averaging.mean_model import has_moved
from partreduce.runtime.data.sampler import pop_fingerprint
from partreduce.runtime.environment import RESTART_COUNT
from partreduce.runtime.guard.layout import Layout
from partreduce.runtime.guard.table import Found, Moment, When, check
from partreduce.runtime.guard.wrapping import framework_advice, with_inner
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.transport.store import Notes

ADDS_PROGRESS = "would send the difference to the others as progress"
TAKEN_ELSEWHERE = "would apply gradients to it that were taken at other parameters"


class Special(NamedTuple):
    """A step by `skip()` or with a GradScaler: whether it is skipped, the scaler's `found_inf` and scale (or None)."""

    skip: bool
    found_inf: torch.Tensor | None
    scale: torch.Tensor | None


Version = tuple[int, int]


def version_of(parameter: torch.Tensor) -> Version:
    """Return the id of a parameter's gradient, and its version, a count of in-place changes; (0, 0) if it has none."""
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001 - torch has no public way


LOCK = threading.Lock()  # guards the set of runs, over which each optimizer's step iterates, in any thread


class Facts(Layout):
    """State of one optimizer's run that the checks read, such as versions of gradients and warnings already given."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - an Engine, whose module imports this one
        run: Run = engine.run
        super().__init__(run.flat, run.rank, engine.optimizer, run.tables)
        self.engine, self.run = engine, run
        self.averages_gradients = run.traits.averages_gradients
        self.steps = 0  # steps started since wrapping
        self.skips = False  # whether the current step is skipped
        self.given: set[str] = set()  # warnings already given
        self.averaged_elsewhere = False  # whether a forward pass ran inside a DistributedDataParallel
        self.asks_for_checkpoint = False  # whether the script has called load_checkpoint()
        self.loads = self.known_loads = 0  # loads of the model or a submodule; how many of them are correct
        self.made: dict[torch.Tensor, Version] = {}  # gradients after the last backward pass
        self.means: list[Version] | None = None  # averaged gradients, from average_gradients() to step()
        self.added = ""  # a parameter to whose averaged gradient a backward pass has added
        self.frozen: dict[str, str] = {}  # hashes of the frozen parameters at the first step
        self.starts: Callable[[], list[dict[str, str]]] | None = None  # gets all model hashes, if initial='keep'
        self.notes: Notes | None = None  # set if workers are processes, to compare first gradients
        self.num_compared = 0
        self.own = {id(one) for one in with_inner(engine.optimizer)}  # the wrapped optimizer, and those inside it
        self.shares: WeakKeyDictionary[torch.optim.Optimizer, list[Slot]] = WeakKeyDictionary()
        """For each other optimizer that has stepped, the slots of the model's parameters that it holds."""
        self.left: dict[torch.Tensor, Version] = {}  # gradients of those parameters after the last step, averaged
        self.has_stepped = False

    def once(self, what: str) -> bool:
        is_new = what not in self.given
        self.given.add(what)
        return is_new

    def frozen_now(self) -> dict[str, str]:
        """Return each frozen parameter's hash by name; empty for a single process, and while models are equal."""
        if self.run.alone or (self.averages_gradients and not self.engine.differs):
            return {}
        return {name: digest_of([values]) for name, values in self.flat.named_frozen()}

    def share_of(self, optimizer: torch.optim.Optimizer) -> list[Slot]:
        if (share := self.shares.get(optimizer)) is None:
            held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            share = [slot for slot in self.flat.slots() if slot.parameter in held]
            with LOCK:
                self.shares[optimizer] = share
        return share

    def first_local(self, optimizer: torch.optim.Optimizer) -> Found:
        """Return a parameter of `optimizer` (not the wrapped one) whose gradient was not averaged, or None.

        The result holds the values for a message.
        """
        for slot in self.share_of(optimizer):
            left = self.left.get(slot.parameter)
            is_mean = self.has_stepped if left is None else left == version_of(slot.parameter)
            if slot.parameter.grad is not None and not is_mean:
                return {"kind": type(optimizer).__name__, "name": slot.names[0], "rank": self.rank}
        return None


def _parameters_of(group: Mapping[str, Any]) -> list[torch.nn.Parameter]:
    """Return the parameters of an optimizer's group; the group may list pairs (name, parameter) instead."""
    return [entry[1] if isinstance(entry, tuple) else entry for entry in group["params"]]


@check(
    Moment.ADD_GROUP,
    cost="O(group)",
    refuses="add_param_group: a parameter of shape {shape} was not trainable, or not in the model, when "
    "DistributedOptimizer was made; unfreeze first, then wrap",
)
def added_parameter_not_wrapped(facts: Facts, group: Mapping[str, Any]) -> Found:
    """Whether a parameter of the new group was missing from the model, or not trainable, at wrapping."""
    for parameter in _parameters_of(group):
        if not facts.flat.holds(parameter):
            return {"shape": list(parameter.shape)}
    return None


@check(
    Moment.ADD_GROUP,
    cost="O(group)",
    refuses="add_param_group: optimizer_state='average': {missed} of the new group was not foreseen when "
    "DistributedOptimizer was made, so it would not be averaged; give the optimizer these settings when it is made",
)
def state_of_a_new_group(facts: Facts, group: Mapping[str, Any]) -> Found:
    """With `optimizer_state='average'`: whether the new group's settings add optimizer state that is not averaged."""
    riding = facts.flat.riding
    keys = set(state_keys(facts.optimizer, group)) if riding else set()
    for parameter in _parameters_of(group):
        if missed := keys - set(riding.get(parameter, ())):
            return {"missed": ", ".join(sorted(missed))}
    return None


@check(
    Moment.FORWARD,
    Moment.SAVE,
    cost="one hook",
    warns=": step {step}: {what} worker {rank}'s own model, not the mean of all; do it inside `with "
    "optimizer.mean_model():`, which all workers enter, or after optimizer.finish()",
)
def live_model_used(facts: Facts, what: str) -> Found:
    """Whether the model or a submodule is evaluated or saved (how: `what`) while it may differ from the mean model."""
    step = facts.run.progress.step
    is_own = step and "own model" not in facts.given and facts.engine.differs and facts.once("own model")
    return {"step": step, "what": what, "rank": facts.rank} if is_own else None


@check(
    Moment.BEFORE_STEP,
    cost="one hook",
    why="the wrapper may be made, or called, at any time",
    refuses="model: its forward pass, or a part's, runs inside a DistributedDataParallel, which has averaged the "
    "gradients before step(), so the schedule would do nothing; {instead}",
)
def model_inside_distributed_data_parallel(facts: Facts) -> Found:
    """Whether a forward pass ran inside a DistributedDataParallel; in the first 3 steps, of a submodule too."""
    return {"instead": framework_advice() or "train the bare model"} if facts.averaged_elsewhere else None


@check(
    Moment.BEFORE_STEP,
    when=When.FIRST_STEP,
    warns=": the workers were started again, and begin at step 0: this script loads nothing; call "
    "partreduce.load_checkpoint(optimizer, FOLDER) before the first step, and save_checkpoint now and then",
)
def started_again_without_loading(facts: Facts) -> Found:
    """Whether the launcher has restarted the workers and the script has loaded no checkpoint or state."""
    has_loaded = facts.asks_for_checkpoint or facts.run.progress.step or facts.loads
    is_again = facts.steps == 1 and not facts.rank and not facts.run.alone
    return {} if is_again and not has_loaded and os.environ.get(RESTART_COUNT, "0") != "0" else None


@check(
    Moment.BEFORE_STEP,
    cost="one comparison",
    why="scripts roll back at any step",
    refuses="model: was loaded after a step, and strategy {kind!r} {harm}; call optimizer.load_state_dict(...) with "
    "model.load_state_dict(...), on all workers (optimizer.state_dict() will do), to continue from there",
)
def model_loaded_alone(facts: Facts) -> Found:
    """Whether `load_state_dict()` of the model or a submodule was called without that of the optimizer."""
    if facts.loads == facts.known_loads:
        return None
    if facts.engine.runner.is_measured:
        harm = TAKEN_ELSEWHERE if facts.averages_gradients else ADDS_PROGRESS
        return {"kind": facts.run.schedule.strategy.kind, "harm": harm}
    facts.known_loads = facts.loads
    return None


@check(
    Moment.MEETING,
    warns=": model.load_state_dict() inside mean_model() lasts until its end, where each worker gets its own model "
    "back; to continue from what is loaded, call it after that",
)
def loaded_in_mean_model(undone: int) -> Found:
    """Whether `load_state_dict()` was called inside `mean_model()`."""
    return {} if undone else None


@check(
    Moment.SPECIAL_STEP,
    refuses="{what} alone, which has a part of its replica's model; take bfloat16, which needs no scaler, and to drop "
    "a step call zero_grad() and step() on all ranks",
)
def rank_of_a_sharded_model_alone(facts: Facts, step: Special) -> Found:
    """Whether one rank of a sharded model alone would skip a step, or look for infinities."""
    if not facts.is_sharded:
        return None
    return {
        "what": "skip: skips the step on this rank" if step.skip else "GradScaler: looks for infinities on this rank"
    }


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: the gradients of parameter {name!r} have reached the owners of its rows at the end of backward(); "
    "call zero_grad() and step() on all workers to drop the step everywhere",
)
def skip_with_tables(facts: Facts, step: Special) -> Found:
    """Whether `skip()` is called in a model with embedding tables that are exchanged separately."""
    return next(({"name": table.name} for table in facts.run.tables), None) if step.skip else None


@check(
    Moment.SPECIAL_STEP,
    refuses="GradScaler: finds infinities on one worker, and the rows of parameter {name!r} lie on all; use bfloat16, "
    "which needs no scaler",
)
def scaler_with_tables(facts: Facts, step: Special) -> Found:
    """Whether a GradScaler is used in a model with embedding tables that are exchanged separately."""
    return next(({"name": table.name} for table in facts.run.tables), None) if step.found_inf is not None else None


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: average_gradients() has put this step's gradients into those of all workers, who apply them; "
    "skip() before it, or call zero_grad() and step() on all workers to drop the step everywhere",
)
def skip_after_average_gradients(facts: Facts, step: Special) -> Found:
    """Whether `skip()` follows an `average_gradients()` that has already averaged this step's gradients."""
    return {} if step.skip and facts.means is not None else None


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: would apply the mean gradient as it is, while this script changes it (clips it, say) after "
    "average_gradients(); call zero_grad() and continue as in every other step instead",
)
def skip_where_means_are_changed(facts: Facts, step: Special) -> Found:
    """With averaged gradients: whether `skip()` follows a step whose averages the script changed."""
    return {} if step.skip and facts.averages_gradients and facts.run.applier.changes_means else None


@check(
    Moment.SPECIAL_STEP,
    refuses="average_gradients: the gradients that it sent still bore the GradScaler's scale, which is another one "
    "when they come back; call scaler.unscale_(optimizer) before it",
)
def gradients_sent_with_a_scale(facts: Facts, step: Special) -> Found:
    """In a pipeline: whether `average_gradients()` was called before `scaler.unscale_()`."""
    delays = facts.run.schedule.strategy.sync.delays_gradients
    return {} if step.scale is not None and facts.means is not None and delays else None


@check(
    Moment.BEFORE_AVERAGING,
    when=When.FIRST_STEPS,
    cost="one hook a parameter",
    warns=": gradients were changed between backward() and step(), where this schedule averages them: clipping there "
    "acts on this worker's own gradient and differs from DDP; call optimizer.average_gradients() before it",
)
def gradients_clipped_before_averaging(facts: Facts) -> Found:
    """Whether a gradient was changed in place between `backward()` and averaging (judged by its version counter)."""
    allowed = 1 if facts.run.applier.scaled else 0  # a GradScaler may have changed each of them once
    for parameter, (tensor, version) in () if facts.skips else facts.made.items():
        now, changes = version_of(parameter)
        if now == tensor and changes > version + allowed:
            return {} if facts.once("clipping") else None
    return None


@check(
    Moment.BEFORE_AVERAGING,
    refuses="join: is given after_averaging, which workers do to means that they take without their own step(), "
    "and this step() would leave its means as they are; call optimizer.average_gradients() and the same function "
    "before step(), or leave after_averaging out",
)
def means_changed_by_join_alone(facts: Facts) -> Found:
    """Whether `join()` was given `after_averaging` although this `step()` averages by itself."""
    return {} if facts.run.applier.after_averaging is not None else None


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one exchange",
    refuses="initial='keep': worker {rank} starts from another model than worker 0, and averaged gradients would keep "
    "them apart; use 'broadcast', or load the same model on all workers",
)
def models_begin_apart(facts: Facts) -> Found:
    """With `initial='keep'` and averaged gradients: whether the hashes of the workers' models differ."""
    compare, facts.starts = facts.starts, None
    gathered = compare() if compare is not None else []
    return next(({"rank": rank} for rank, one in enumerate(gathered) if one != gathered[0]), None)


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one note a data set",
    warns=".shard_dataset: was given a {what} that differ, or lie in another order, from worker to worker, so some "
    "come to several workers and some to none; give it the same on all: shuffle and split with one seed, sort names of "
    "files, or shuffle what it returns",
)
def data_in_different_orders(facts: Facts) -> Found:
    """Whether `shard_dataset()` got different data on workers, judged by hashes of a few elements in the store."""
    if facts.notes is None:
        return None
    apart = ""
    for place, mine in pop_fingerprint().items():
        differs = facts.notes.propose(f"dealt {place}", mine) != mine
        if differs and facts.notes.count("dealt apart", 1) == 1:
            apart = place
    return {"what": apart.rpartition(",")[0]} if apart else None


FEWEST_NUMBERS = 16  # with fewer nonzero gradients, different batches may agree by chance, e.g. for small counts
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one pass over the gradients, in the first step whose gradients say enough",
    warns=": all {count} workers have the same gradients in their first step, so they train on the same batches, and "
    "do no more than one worker; give each its own part, as partreduce.shard_dataset(data) does, or, if the "
    "script averages gradients itself, leave that to the schedule",
)
def same_batches(facts: Facts) -> Found:
    """Whether all workers have the same local gradients, judged by hashes that they write to the store.

    Models start equal, so equal batches give bitwise equal gradients. No worker waits: only the last worker to write
    warns, if all hashes equal the first.
    """
    if facts.notes is None or not (mine := fingerprint(slot.gradient for slot in facts.flat.slots())):
        return None
    notes, facts.notes = facts.notes, None
    is_last = notes.propose("first", mine) == mine and notes.count("data", 1) == facts.num_compared
    return {"count": facts.num_compared} if is_last else None


def fingerprint(gradients: Iterable[torch.Tensor | None]) -> str:
    """Return a hash of the bits of dense gradients; empty if fewer than 16 numbers are nonzero or one is not finite."""
    sums, sizes = [], []
    for gradient in gradients:
        if gradient is None or gradient.layout is not torch.strided or not gradient.is_floating_point():
            continue
        numbers = gradient.detach().contiguous() + 0.0  # turns -0.0 into 0.0
        sums.append(numbers.view(BITS[numbers.element_size()]).sum(dtype=torch.int64))
        sizes.append(numbers.isfinite().all() * numbers.count_nonzero() - (~numbers.isfinite()).any().long())
    if not sums:
        return ""
    known: list[list[int]] = torch.stack([torch.stack(sums), torch.stack(sizes)]).tolist()
    if min(known[1]) < 0 or sum(known[1]) < FEWEST_NUMBERS:
        return ""
    return hashlib.sha256(repr(known).encode()).hexdigest()


@check(
    Moment.AFTER_AVERAGING,
    cost="one hook a parameter, in scripts that call average_gradients()",
    refuses="step: parameter {name!r} got a gradient between average_gradients() and step(), which would add this "
    "worker's own to the mean of all; call backward() first, then average_gradients()",
)
def backward_after_average_gradients(facts: Facts) -> Found:
    """Whether a backward pass has added to a gradient after `average_gradients()`."""
    return {"name": facts.added} if facts.added else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="one hook",
    refuses="optimizer: the plain {kind} of worker {rank} was stepped by itself, which the schedule does not see; call "
    "step() of the DistributedOptimizer, with a closure if the plain one needs one, or keep the plain one and call "
    "partreduce.attach",
)
def plain_optimizer_stepped(facts: Facts, optimizer: torch.optim.Optimizer) -> Found:
    """Whether the wrapped optimizer's own `step()` is called, outside the DistributedOptimizer's."""
    return {"kind": type(optimizer).__name__, "rank": facts.rank} if id(optimizer) in facts.own else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="one hook",
    refuses="optimizer: {kind} steps parameter {name!r} of worker {rank} before the first step() of the "
    "DistributedOptimizer, which measures from the model with which all begin; step it after that one",
)
def another_optimizer_first(facts: Facts, optimizer: torch.optim.Optimizer) -> Found:
    """For outer steps and servers: whether another optimizer of the model steps before DistributedOptimizer does."""
    opens = not facts.run.progress.step and facts.run.traits.measures_from_start
    return facts.first_local(optimizer) if opens else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="O(its part), in scripts with several optimizers",
    refuses="optimizer: {kind} steps parameter {name!r} of worker {rank} with this worker's own gradient, which is "
    "still to be averaged; call average_gradients() of the DistributedOptimizer before it",
)
def another_optimizer_with_own_gradients(facts: Facts, optimizer: torch.optim.Optimizer) -> Found:
    """Whether another optimizer steps part of the model with gradients that are not averaged yet."""
    return facts.first_local(optimizer) if facts.engine.has_local_gradients else None


@check(
    Moment.MEETING,
    cost="one pass over 4,096 numbers of each",
    warns=": step {step}: parameter {name!r} of worker {rank}, frozen when DistributedOptimizer was made, has changed "
    "and is not averaged, so it is this worker's own, not the mean of all; wrap the model first and then freeze it, "
    "and it is averaged like the others",
)
def frozen_changed(facts: Facts) -> Found:
    """If models may differ: whether a parameter frozen at wrapping has changed, judged by at most 4,096 elements."""
    now = facts.frozen_now() if facts.frozen else {}
    changed = next((name for name, values in now.items() if values != facts.frozen[name]), None)
    if changed is None:
        return None
    facts.frozen = {}
    return {"step": facts.run.progress.step, "name": changed, "rank": facts.rank}


@check(
    Moment.MEETING,
    cost="one pass over them",
    warns=": step {step}: worker {rank}'s model is not the mean of all, though this schedule averages gradients, which "
    "keeps models equal: something changed it, its gradients or its optimizer on some workers only; apply it on "
    "all, or average parameters (steps_per_round > 1)",
)
def models_that_part(facts: Facts, before: list[torch.Tensor]) -> Found:
    """With averaged gradients: whether averaging all models changes this one, judged by 65,536 elements per bucket."""
    is_apart = has_moved(facts.flat, before) and facts.once("models part")
    return {"step": facts.run.progress.step, "rank": facts.rank} if is_apart else None
