"""Guard: watches one worker's run for misuse, from wrapping to its end.

The engine calls it at the moments of a step; hooks call it where the script uses the model, loads it, or steps an
optimizer. The checks are rows of the table (see `table`); what they need to remember is kept here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from partreduce.runtime.averaging.bucket import Slot
from partreduce.runtime.averaging.digest import digest_of
from partreduce.runtime.averaging.mean_model import has_moved, sample_of
from partreduce.runtime.averaging.module_hook import ModuleHook
from partreduce.runtime.averaging.optimizer_state import state_keys
from partreduce.runtime.data.sketches import take_dealt
from partreduce.runtime.environment import RESTART_COUNT
from partreduce.runtime.guard.layout import Layout
from partreduce.runtime.guard.table import FIRST_STEPS, Check, Found, Moment, When, check, checks_always, checks_at
from partreduce.runtime.guard.wrapping import way_out, with_inner
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.transport.notes import Notes
from partreduce.runtime.transport.torch_api import Store, torch_compile_disable
from partreduce.topo.strategies.axes import GradientBuckets


class Watched(Protocol):
    """The engine of a run."""

    run: Run
    runner: Any
    optimizer: torch.optim.Optimizer

    @property
    def differs(self) -> bool:
        """Whether this worker's model may be another one than the mean of all."""

    @property
    def has_local_gradients(self) -> bool:
        """Whether the gradients of the coming step are still to be averaged."""

    @property
    def round(self) -> int:
        """The round that this worker is in."""


Version = tuple[int, int]
"""Which tensor a gradient is, and how often it was changed."""


def version_of(parameter: torch.Tensor) -> Version:
    """Of a parameter's gradient."""
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001 - torch has no public way


@dataclass(slots=True)
class _Share:
    """What another optimizer holds of a model, and, once it was seen, the mean gradients that step() left there."""

    slots: list[Slot]
    means: list[Version] | None = None


class Guard(Layout):
    """What is watched of one run; a model is watched for the newest optimizer around it."""

    def __init__(self, engine: Watched) -> None:
        run = engine.run
        super().__init__(run.flat, run.rank, engine.optimizer, run.tables)
        self.engine, self.run = engine, run
        self.steps = 0
        """Steps that began since wrapping."""
        self.always = checks_always()
        self._is_early = True
        self._is_torchs = type(engine.optimizer).__module__.startswith("torch.optim.")
        self.before = self._plan(Moment.BEFORE_STEP)
        self.before_averaging_rows = self._plan(Moment.BEFORE_AVERAGING)
        strategy = run.schedule.strategy
        self.averages_gradients = strategy.averages_gradients and not run.alone
        # Of forward passes and what is saved.
        self.averaged_elsewhere = self.warned_of_own_model = False
        self.asks_for_checkpoint = False
        """Whether the script has asked for one to go on from."""
        self._hooks: list[RemovableHandle] = []
        self._part_hooks: list[RemovableHandle] = []
        # Of loads.
        self.loads = self.known_loads = 0
        """How often the model, or a part of it, was loaded; and how many of these are as they should be."""
        self.first_of_round = True
        self.skips = False
        for module in run.flat.model.modules():
            module.register_load_state_dict_post_hook(_AfterLoad(ref(self)))  # type: ignore[no-untyped-call]
        # Of gradients.
        self._gradient_hooks: list[RemovableHandle] = []
        self.made: dict[torch.Tensor, Version] = {}
        """Gradients as the last backward pass made them."""
        self.warned_of_clipping = False
        self.means: list[Version] | None = None
        """The gradients as average_gradients() left them, until the step that takes them."""
        self.added = ""
        """The name of a parameter to whose mean a backward pass has added."""
        if self.averages_gradients and strategy.transport.gradient_buckets is not GradientBuckets.PER_LAYER:
            self._hook_gradients()  # what is changed after it has left by layers is refused there
        # Of frozen parameters, models and data of others.
        self.frozen: dict[str, str] = {}
        """Fingerprints of the frozen parameters as the first step found them."""
        self.warned_of_differences = False
        self.start_of_others: Callable[[], list[dict[str, str]]] | None = None
        """Fingerprints of the models with which workers begin, where each kept its own; for the first average."""
        self.notes: Notes | None = None
        """Where workers are processes: what they compare their first gradients by, until these said enough."""
        self.num_compared = 0
        # Of other optimizers.
        self._own = {id(one) for one in with_inner(engine.optimizer)}
        self._shares: WeakKeyDictionary[torch.optim.Optimizer, _Share] = WeakKeyDictionary()
        self._has_stepped = False

    def _plan(self, moment: Moment) -> tuple[Check, ...]:
        rows = checks_at(moment)
        return rows if self._is_early or self.always else tuple(row for row in rows if row.when is When.ALWAYS)

    # From wrapping to the end.

    def attach(self) -> None:
        """Begin to watch."""
        if self.run.alone:
            return
        self.resume()
        if not _hooked:
            _hooked.append(register_optimizer_step_pre_hook(_before_optimizer_step))
        with _lock:
            _watching.add(self)

    def detach(self) -> None:
        """The run has ended."""
        self.pause()
        with _lock:
            _watching.discard(self)

    def resume(self) -> None:
        """Watch what the script does with the model."""
        if self.run.alone or self._hooks:
            return
        # Not where it is defined: it imports the compiler, as every optimizer that is made has done by now.
        torch.compiler.assume_constant_result(_forward_begins)  # type: ignore[no-untyped-call]
        model = self.flat.model
        _watch(model, _wholes, self)
        self._hooks = [
            model.register_forward_pre_hook(_BeforeForward()),
            *(
                part.register_state_dict_pre_hook(_BeforeStateDict(ref(self), f"model.{name}".rstrip(".")))
                for name, part in model.named_modules()
                if next(part.parameters(), None) is not None
            ),
        ]
        if self._is_early or self.always:  # a wrapper may hold a part alone, or call the parts and never the model
            for part in model.modules():
                if part is not model and next(part.parameters(recurse=False), None) is not None:
                    _watch(part, _parts, self)
                    self._part_hooks.append(part.register_forward_pre_hook(_BeforeForward()))

    def pause(self) -> None:
        """Where the model is the mean of all, a script may do with it what it likes."""
        _remove(self._hooks)
        _remove(self._part_hooks)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the model is the mean of all; what is loaded there does not last."""
        self.pause()
        loads = self.loads
        try:
            yield
        finally:
            self.resume()
            undone, self.known_loads = self.loads - loads, self.known_loads + self.loads - loads
            loaded_in_mean_model(undone)

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Before a group is added to the optimizer.

        Raises:
            InputError: a parameter or a setting with which it would not be averaged.
        """
        for row in checks_at(Moment.ADD_GROUP):
            row(self, group)

    # The moments of a step.

    def before_step(self, *, first: bool) -> None:
        """Before a step, `first` of its round.

        Raises:
            InputError: the model or the optimizer was changed in a way that cannot be averaged.
        """
        self.first_of_round = first
        if not self.steps:
            self.frozen = self.frozen_now()
        self.steps += 1
        self.prepare()
        for row in self.before:
            row(self)

    def after_closure(self) -> None:
        """The closure of a step was called, with a forward pass of its own."""
        model_inside_distributed_data_parallel(self)

    def special_step(self, *, skip: bool, found_inf: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        """Before a step that is to be skipped, or that a GradScaler is at work on.

        Raises:
            InputError: this process would decide by itself for others that do not.
        """
        for row in checks_at(Moment.SPECIAL_STEP):
            row(self, skip, found_inf, scale)

    def before_averaging(self, *, skip: bool) -> None:
        """In step(), which is to average the gradients as they are now, or zeros where it is to `skip`."""
        self.skips = skip
        for row in self.before_averaging_rows:
            row(self)
        self.made.clear()

    def compare_starts(self) -> None:
        """Before the first average.

        Raises:
            InputError: workers begin with different models, and averaged gradients would keep them apart.
        """
        if self.start_of_others is not None:
            models_begin_apart(self)

    def compare_data(self) -> None:
        """With this worker's own gradients in place, before they are averaged or applied."""
        if self.notes is not None:
            data_in_different_orders(self)
            same_batches(self)

    def compares_data(self, store: Store, key: str, num_workers: int) -> None:
        """Compare the first gradients, and the data that were dealt, by notes in the run's store."""
        self.notes, self.num_compared = Notes(store, f"alike/{key}"), num_workers

    def after_averaging(self) -> None:
        """average_gradients() has put means in place, and the script may look at them."""
        self._hook_gradients()
        self.added = ""
        self.means = self._gradients()

    def means_changed(self) -> bool:
        """Before a step with means that are in place: whether the script has changed or replaced one. O(parameters).

        Raises:
            InputError: a backward pass has added to them.
        """
        for row in checks_at(Moment.AFTER_AVERAGING):
            row(self)
        return self.means is not None and self._gradients() != self.means

    def after_step(self, *, ends_round: bool = False) -> None:
        """After a step; gradients that were averaged are means until a backward pass adds to them."""
        self.means = None
        if self._is_early and self.steps >= FIRST_STEPS:
            self._is_early = False
            self._leave_early_checks()
        if ends_round and not self._is_torchs:
            self.prepare()
            for row in checks_at(Moment.AFTER_STEP):
                row(self)
        if self.averages_gradients:
            self._has_stepped = True
            if self._shares:
                with _lock:
                    shares = list(self._shares.values())
                for share in shares:
                    share.means = [version_of(slot.parameter) for slot in share.slots]

    def _leave_early_checks(self) -> None:
        self.before, self.before_averaging_rows = self._plan(Moment.BEFORE_STEP), self._plan(Moment.BEFORE_AVERAGING)
        if not self.always:
            _remove(self._part_hooks)
            _remove(self._gradient_hooks)
            self.made.clear()

    def went_on(self) -> None:
        """The run goes on from another step, with what was loaded."""
        self.known_loads, self.means = self.loads, None

    def meeting(self) -> None:
        """Where all meet.

        Raises:
            InputError: the model or the optimizer was changed in a way that cannot be averaged.
        """
        self.check()
        frozen_changed(self)

    @contextlib.contextmanager
    def comparing_models(self) -> Iterator[None]:
        """Around a mean over all: where models should be equal, say once that this worker's was not."""
        expected = self.averages_gradients and not self.engine.differs and not self.warned_of_differences
        before = sample_of(self.flat) if expected else []
        yield
        if before:
            models_that_part(self, before)

    # What rows ask.

    def _gradients(self) -> list[Version]:
        return [version_of(slot.parameter) for slot in self.flat.slots()]

    def _hook_gradients(self) -> None:
        if not self._gradient_hooks:
            self._gradient_hooks = [
                slot.parameter.register_post_accumulate_grad_hook(self._gradient_made)  # type: ignore[no-untyped-call]
                for slot in self.flat.slots()
            ]

    @torch_compile_disable
    def _gradient_made(self, parameter: torch.Tensor) -> None:
        """After a backward pass has made a gradient; may run in a thread of autograd's, so it raises nothing."""
        if self.means is not None:
            if not self.added:
                self.added = next(slot.names[0] for slot in self.flat.slots() if slot.parameter is parameter)
        elif parameter.grad is not None:
            self.made[parameter] = version_of(parameter)

    def frozen_now(self) -> dict[str, str]:
        if self.run.alone or (self.averages_gradients and not self.engine.differs):
            return {}
        return {name: digest_of([values]) for name, values in self.flat.named_frozen()}

    def first_local(self, optimizer: torch.optim.Optimizer) -> str:
        """The first parameter that another optimizer steps by a gradient that is no mean; empty if there is none."""
        if (share := self._shares.get(optimizer)) is None:
            held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            share = _Share([slot for slot in self.flat.slots() if slot.parameter in held])
            with _lock:
                self._shares[optimizer] = share
        for index, slot in enumerate(share.slots):
            is_mean = self._has_stepped if share.means is None else share.means[index] == version_of(slot.parameter)
            if slot.parameter.grad is not None and not is_mean:
                return slot.names[0]
        return ""

    def is_own(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is the wrapped optimizer, or one inside it."""
        return id(optimizer) in self._own

    def opens(self) -> bool:
        """Whether the model as the first step finds it has to be everybody's, and that step has not begun."""
        return bool(self.engine.runner.measures_from_start) and not self.run.progress.step

    def is_own_model(self) -> bool:
        """Whether the live model may be another one than the mean, and nothing was said of it."""
        if self.warned_of_own_model or not self.run.progress.step or not self.engine.differs:
            return False
        self.warned_of_own_model = True
        return True

    def of_own_model(self, what: str) -> Found:
        return {"step": self.run.progress.step, "what": what, "rank": self.rank} if self.is_own_model() else None


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


# Hooks on modules. Those of forward passes know their module by id(), which is a constant to every torch that compiles
# a call; a module is one only from 2.7 on. What they call is called while torch compiles, once, and leaves nothing in
# what it makes.

_wholes: WeakKeyDictionary[torch.nn.Module, ReferenceType[Guard]] = WeakKeyDictionary()
_parts: WeakKeyDictionary[torch.nn.Module, ReferenceType[Guard]] = WeakKeyDictionary()
"""Apart, since a part of one optimizer's model may be the whole model of another."""
_modules: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()


def _watch(
    module: torch.nn.Module, watched: WeakKeyDictionary[torch.nn.Module, ReferenceType[Guard]], guard: Guard
) -> None:
    watched[module], _modules[id(module)] = ref(guard), module


class _BeforeForward(ModuleHook):
    def __call__(self, module: torch.nn.Module, _arguments: object) -> None:
        _forward_begins(id(module))


def _forward_begins(number: int) -> None:
    if (module := _modules.get(number)) is None:
        return
    for watched in (_wholes, _parts):
        found = watched.get(module)
        if found is None or (guard := found()) is None:
            continue
        if torch.is_grad_enabled():
            guard.averaged_elsewhere |= averaged_elsewhere(module)
        elif watched is _wholes and not module.training:
            live_model_evaluated(guard)


def averaged_elsewhere(module: torch.nn.Module) -> bool:
    """Inside a forward pass of `module`: whether a DistributedDataParallel around it averages what backward makes."""
    wrapper: Any = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return (
        wrapper is not None and wrapper.require_backward_grad_sync and any(one is module for one in wrapper.modules())
    )


class _AfterLoad(ModuleHook):
    def __init__(self, guard: ReferenceType[Guard]) -> None:
        self._guard = guard

    def __call__(self, _module: torch.nn.Module, _incompatible_keys: object) -> None:
        if (guard := self._guard()) is not None:
            guard.loads += 1


class _BeforeStateDict(ModuleHook):
    """The hook that is called before a module's state dict is made, and knows when the module itself is pickled."""

    def __init__(self, guard: ReferenceType[Guard], name: str) -> None:
        self._guard, self._name = guard, name

    def __call__(self, _module: torch.nn.Module, _prefix: str, _keep_vars: bool) -> None:
        if (guard := self._guard()) is not None:
            live_model_saved(guard, f"{self._name}.state_dict() holds")

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        if (guard := self._guard()) is not None:
            live_model_saved(guard, f"torch.save({self._name}), or pickling it, writes")
        return super().__reduce__()


# One hook before every optimizer's step.

_watching: WeakSet[Guard] = WeakSet()
_lock = threading.Lock()
"""Optimizers of several threads step, and each step looks at all that watch: none may come while another one lists."""
_hooked: list[object] = []
"""Torch's handle of the hook, which all runs of the process share."""
_OPTIMIZER_STEP: list[Check] = []


def _before_optimizer_step(optimizer: torch.optim.Optimizer, _arguments: object, _named: object) -> None:
    with _lock:
        watching = list(_watching)
    for guard in watching:
        if not guard.run.applier.is_stepping:
            for row in _OPTIMIZER_STEP:
                row(guard, optimizer)


# The rows.


@check(
    Moment.ADD_GROUP,
    cost="O(group)",
    refuses="add_param_group: a parameter of shape {shape} was not trainable, or not in the model, when "
    "DistributedOptimizer was made; unfreeze first, then wrap",
)
def added_parameter_not_wrapped(guard: Guard, group: Mapping[str, Any]) -> Found:
    """The parameters of the new group."""
    for entry in group["params"]:
        parameter = entry[1] if isinstance(entry, tuple) else entry  # torch takes (name, parameter) as well
        if not guard.flat.holds(parameter):
            return {"shape": list(parameter.shape)}
    return None


@check(
    Moment.ADD_GROUP,
    cost="O(group)",
    refuses="add_param_group: optimizer_state='average': {missed} of the new group was not foreseen when "
    "DistributedOptimizer was made, so it would not be averaged; give the optimizer these settings when it is made",
)
def state_of_a_new_group(guard: Guard, group: Mapping[str, Any]) -> Found:
    """With `optimizer_state='average'`: what the optimizer keeps under the new group's settings."""
    riding = guard.flat.riding
    keys = set(state_keys(guard.optimizer, group)) if riding else set()
    for entry in group["params"]:
        if missed := keys - set(riding.get(entry[1] if isinstance(entry, tuple) else entry, ())):
            return {"missed": ", ".join(sorted(missed))}
    return None


OWN_MODEL = (
    ": step {step}: {what} worker {rank}'s own model, not the mean of all; do it inside `with "
    "optimizer.mean_model():`, which all workers enter, or after optimizer.finish()"
)


@check(Moment.FORWARD, cost="one hook", warns=OWN_MODEL)
def live_model_evaluated(guard: Guard) -> Found:
    """Whether the model evaluates, and may differ from the mean of all."""
    return guard.of_own_model("model.eval() and a forward pass evaluate")


@check(Moment.SAVE, cost="none between saves", warns=OWN_MODEL)
def live_model_saved(guard: Guard, what: str) -> Found:
    """Whether the model, or the part that is saved, may differ from the mean of all."""
    return guard.of_own_model(what)


@check(
    Moment.BEFORE_STEP,
    cost="one hook",
    why="the wrapper may be made, or called, at any time",
    refuses="model: its forward pass, or a part's, runs inside a DistributedDataParallel, which has averaged the "
    "gradients before step(), so the schedule would do nothing; {instead}",
)
def model_inside_distributed_data_parallel(guard: Guard) -> Found:
    """A flag that forward passes set: those of the model, and of its parts in the first 3 steps."""
    return {"instead": way_out() or "train the bare model"} if guard.averaged_elsewhere else None


@check(
    Moment.BEFORE_STEP,
    when=When.FIRST_STEP,
    warns=": the workers were started again, and begin at step 0: this script loads nothing; call "
    "partreduce.load_checkpoint(optimizer, FOLDER) before the first step, and save_checkpoint now and then",
)
def started_again_without_loading(guard: Guard) -> Found:
    """The launcher's count of restarts, and whether anything was loaded."""
    has_loaded = guard.asks_for_checkpoint or guard.run.progress.step or guard.loads
    is_again = guard.steps == 1 and not guard.rank and not guard.run.alone
    return {} if is_again and not has_loaded and os.environ.get(RESTART_COUNT, "0") != "0" else None


@check(
    Moment.BEFORE_STEP,
    cost="one comparison",
    why="scripts roll back at any step",
    refuses="model: was loaded after a step, and strategy {kind!r} {harm}; call optimizer.load_state_dict(...) beside "
    "model.load_state_dict(...), on all workers (optimizer.state_dict() will do), to go on from there",
)
def model_loaded_alone(guard: Guard) -> Found:
    """A count of `load_state_dict()` of the model and its modules."""
    if guard.loads == guard.known_loads:
        return None
    if harm := guard.engine.runner.harm_of_loading(guard.engine.round, first=guard.first_of_round):
        return {"kind": guard.run.schedule.strategy.kind, "harm": harm}
    guard.known_loads = guard.loads
    return None


@check(
    Moment.MEETING,
    warns=": model.load_state_dict() inside mean_model() lasts until its end, where each worker gets its own model "
    "back; to go on from what is loaded, call it after that",
)
def loaded_in_mean_model(undone: int) -> Found:
    """The same count, inside `mean_model()`."""
    return {} if undone else None


@check(
    Moment.SPECIAL_STEP,
    refuses="{what} alone, which has a part of its replica's model; take bfloat16, which needs no scaler, and to drop "
    "a step call zero_grad() and step() on all ranks",
)
def rank_of_a_sharded_model_alone(guard: Guard, skip: bool, _inf: object, _scale: object) -> Found:
    """Whether the model is sharded over ranks."""
    if not guard.flat.sharders.shards:
        return None
    return {"what": "skip: skips the step on this rank" if skip else "GradScaler: looks for infinities on this rank"}


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: the gradients of parameter {name!r} have reached the owners of its rows at the end of backward(); "
    "call zero_grad() and step() on all workers to drop the step everywhere",
)
def skip_with_tables(guard: Guard, skip: bool, _inf: object, _scale: object) -> Found:
    """Whether there are tables of their own route."""
    return next(({"name": table.name} for table in guard.run.tables), None) if skip else None


@check(
    Moment.SPECIAL_STEP,
    refuses="GradScaler: finds infinities on one worker, and the rows of parameter {name!r} lie on all; use bfloat16, "
    "which needs no scaler",
)
def scaler_with_tables(guard: Guard, _skip: bool, inf: object, _scale: object) -> Found:
    """Whether there are tables of their own route."""
    return next(({"name": table.name} for table in guard.run.tables), None) if inf is not None else None


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: average_gradients() has put this step's gradients into those of all workers, who apply them; "
    "skip() before it, or call zero_grad() and step() on all workers to drop the step everywhere",
)
def skip_after_average_gradients(guard: Guard, skip: bool, _inf: object, _scale: object) -> Found:
    """Whether the step's gradients are means already."""
    return {} if skip and guard.means is not None else None


@check(
    Moment.SPECIAL_STEP,
    refuses="skip: would apply the mean gradient as it is, while this script changes it (clips it, say) after "
    "average_gradients(); call zero_grad() and go on as in every other step instead",
)
def skip_where_means_are_changed(guard: Guard, skip: bool, _inf: object, _scale: object) -> Found:
    """Whether the script changed the means of its last step."""
    return {} if skip and guard.averages_gradients and guard.run.applier.changes_means else None


@check(
    Moment.SPECIAL_STEP,
    refuses="average_gradients: the gradients that it sent still bore the GradScaler's scale, which is another one "
    "when they come back; call scaler.unscale_(optimizer) before it",
)
def gradients_sent_with_a_scale(guard: Guard, _skip: bool, _inf: object, scale: object) -> Found:
    """In a pipeline: whether average_gradients() came before `scaler.unscale_()`."""
    delays = guard.run.schedule.strategy.sync.delays_gradients
    return {} if scale is not None and guard.means is not None and delays else None


@check(
    Moment.BEFORE_AVERAGING,
    when=When.FIRST_STEPS,
    cost="one hook a parameter",
    warns=": gradients were changed between backward() and step(), where this schedule averages them: clipping there "
    "acts on this worker's own gradient and differs from DDP; call optimizer.average_gradients() before it",
)
def gradients_clipped_before_averaging(guard: Guard) -> Found:
    """Each gradient's version at the end of backward() and in step(), where this averages them."""
    allowed = 1 if guard.run.applier.scaled else 0  # a GradScaler may have changed each of them once
    if guard.warned_of_clipping or guard.skips:
        return None
    for parameter, (tensor, version) in guard.made.items():
        now, changes = version_of(parameter)
        if now == tensor and changes > version + allowed:
            guard.warned_of_clipping = True
            return {}
    return None


@check(
    Moment.BEFORE_AVERAGING,
    refuses="join: is given after_averaging, which workers do to means that they take without a step() of their own, "
    "and this step() would leave its means as they are; call optimizer.average_gradients() and the same function "
    "before step(), or leave after_averaging out",
)
def means_changed_by_join_alone(guard: Guard) -> Found:
    """Whether join() was given `after_averaging`, and this step() averages by itself."""
    return {} if guard.engine.runner.after_averaging is not None else None


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one exchange",
    refuses="initial='keep': worker {rank} starts from another model than worker 0, and averaged gradients would keep "
    "them apart; use 'broadcast', or load the same model on all workers",
)
def models_begin_apart(guard: Guard) -> Found:
    """With `initial='keep'` and averaged gradients: fingerprints of all models."""
    compare, guard.start_of_others = guard.start_of_others, None
    said = compare() if compare is not None else []
    return next(({"rank": rank} for rank, one in enumerate(said) if one != said[0]), None)


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one note a data set",
    warns=".shard_dataset: was given a {what} that differ, or lie in another order, from worker to worker, so some "
    "come to several workers and some to none; give it the same on all: shuffle and split with one seed, sort names of "
    "files, or shuffle what it returns",
)
def data_in_different_orders(guard: Guard) -> Found:
    """Sketches of what `shard_dataset()` was given, noted in the store."""
    if guard.notes is None:
        return None
    apart = ""
    for place, mine in take_dealt().items():
        differs = guard.notes.propose(f"dealt {place}", mine) != mine
        if differs and guard.notes.count("dealt apart", 1) == 1:
            apart = place
    return {"what": apart.rpartition(",")[0]} if apart else None


FEWEST_NUMBERS = 16
"""Different batches may agree in fewer gradients by chance, where data are signs or small counts."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@check(
    Moment.FIRST_AVERAGE,
    when=When.FIRST_STEP,
    cost="one pass over the gradients, in the first step whose gradients say enough",
    warns=": all {count} workers have the same gradients in their first step, so they train on the same batches, and "
    "do no more than one worker; give each a part of its own, as partreduce.shard_dataset(data) does, or, if the "
    "script averages gradients itself, leave that to the schedule",
)
def same_batches(guard: Guard) -> Found:
    """A fingerprint of each worker's own gradients, noted in the store.

    Models begin equal, so equal batches give equal gradients, bit for bit. Nobody waits: the last of those whose
    gradients are the first ones that were proposed says so.
    """
    if guard.notes is None or not (mine := fingerprint(slot.gradient for slot in guard.flat.slots())):
        return None
    notes, guard.notes = guard.notes, None
    is_last = notes.propose("first", mine) == mine and notes.count("alike", 1) == guard.num_compared
    return {"count": guard.num_compared} if is_last else None


def fingerprint(gradients: Iterable[torch.Tensor | None]) -> str:
    """A hash of dense gradients' bits; empty where they are too few, or tell nothing because one is not finite."""
    sums, sizes = [], []
    for gradient in gradients:
        if gradient is None or gradient.layout is not torch.strided or not gradient.is_floating_point():
            continue
        numbers = gradient.detach().contiguous() + 0.0  # one zero only
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
    why="it would add this worker's own gradient to the mean of all",
    refuses="step: parameter {name!r} got a gradient between average_gradients() and step(), which would add this "
    "worker's own to the mean of all; call backward() first, then average_gradients()",
)
def backward_after_average_gradients(guard: Guard) -> Found:
    """A flag that backward passes set."""
    return {"name": guard.added} if guard.added else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="one hook",
    why="SAM and GradScaler step it at any time",
    refuses="optimizer: the plain {kind} of worker {rank} was stepped by itself, which the schedule does not see; call "
    "step() of the DistributedOptimizer, with a closure if the plain one needs one, or keep the plain one and call "
    "partreduce.attach",
)
def plain_optimizer_stepped(guard: Guard, optimizer: torch.optim.Optimizer) -> Found:
    """Whether it is the wrapped optimizer, or one inside it, and step() of the DistributedOptimizer is not at work."""
    return {"kind": type(optimizer).__name__, "rank": guard.rank} if guard.is_own(optimizer) else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="one hook",
    refuses="optimizer: {kind} steps parameter {name!r} of worker {rank} before the first step() of the "
    "DistributedOptimizer, which measures from the model with which all begin; step it after that one",
)
def another_optimizer_first(guard: Guard, optimizer: torch.optim.Optimizer) -> Found:
    """Before the first step of outer steps and servers: whether it trains a part of the model."""
    name = guard.first_local(optimizer) if guard.opens() else ""
    return {"kind": type(optimizer).__name__, "name": name, "rank": guard.rank} if name else None


@check(
    Moment.OPTIMIZER_STEP,
    cost="O(its part), in scripts with several optimizers",
    why="hooks in backward() step optimizers at any time",
    refuses="optimizer: {kind} steps parameter {name!r} of worker {rank} with this worker's own gradient, which is "
    "still to be averaged; call average_gradients() of the DistributedOptimizer before it",
)
def another_optimizer_with_own_gradients(guard: Guard, optimizer: torch.optim.Optimizer) -> Found:
    """Whether it trains a part of the model by gradients that are still to be averaged."""
    name = guard.first_local(optimizer) if guard.engine.has_local_gradients else ""
    return {"kind": type(optimizer).__name__, "name": name, "rank": guard.rank} if name else None


_OPTIMIZER_STEP += checks_at(Moment.OPTIMIZER_STEP)


@check(
    Moment.MEETING,
    cost="one pass over 4,096 numbers of each",
    warns=": step {step}: parameter {name!r} of worker {rank}, frozen when DistributedOptimizer was made, has changed "
    "and is not averaged, so it is this worker's own, not the mean of all; wrap the model first and then freeze it, "
    "and it is averaged like the others",
)
def frozen_changed(guard: Guard) -> Found:
    """Some numbers of the parameters that were frozen at wrapping, where workers' models may differ."""
    now = guard.frozen_now() if guard.frozen else {}
    changed = next((name for name, values in now.items() if values != guard.frozen[name]), None)
    if changed is None:
        return None
    guard.frozen = {}
    return {"step": guard.run.progress.step, "name": changed, "rank": guard.rank}


@check(
    Moment.MEETING,
    cost="one pass over them",
    warns=": step {step}: worker {rank}'s model is not the mean of all, though this schedule averages gradients, which "
    "keeps models equal: something changed it, its gradients or its optimizer on some workers only; do that alike on "
    "all, or average parameters (steps_per_round > 1)",
)
def models_that_part(guard: Guard, before: list[torch.Tensor]) -> Found:
    """With averaged gradients: 65,536 numbers of each bucket before and after the mean over all."""
    if not has_moved(guard.flat, before):
        return None
    guard.warned_of_differences = True
    return {"step": guard.run.progress.step, "rank": guard.rank}
