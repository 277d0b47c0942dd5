"""Watch one worker's run for misuse: hooks and the engine run the checks of `table.TABLE`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from partreduce.runtime.averaging.mean_model import sample_of
from partreduce.runtime.guard import training
from partreduce.runtime.guard.table import FIRST_STEPS, Moment, When, checks_always, checks_at, run_checks
from partreduce.runtime.guard.training import LOCK, Facts, Special, Version, version_of
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.torch_api import Store, torch_compile_disable
from partreduce.topo.strategies.axes import GradientBuckets


class Guard(Facts):
    """Runner of the checks for misuse (`table.TABLE`) of one optimizer's run, with the hooks that trigger some of them.

    If several optimizers wrap the same model, its forward hooks belong to the newest optimizer.
    """

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - an Engine, whose module imports this one
        super().__init__(engine)
        self.always = checks_always()
        self._is_early = True
        self._plan()
        self._is_torchs = type(engine.optimizer).__module__.startswith("torch.optim.")
        self._hooks: list[RemovableHandle] = []
        self._part_hooks: list[RemovableHandle] = []
        self._gradient_hooks: list[RemovableHandle] = []
        for module in self.flat.model.modules():
            module.register_load_state_dict_post_hook(_AfterLoad(ref(self)))  # type: ignore[no-untyped-call]
        by_layers = self.run.schedule.strategy.transport.gradient_buckets is GradientBuckets.PER_LAYER
        if self.averages_gradients and not by_layers:  # `LayerSender` itself detects changes of gradients already sent
            self._hook_gradients()

    def _plan(self) -> None:
        self._before_step, self._before_averaging = (
            [row for row in checks_at(moment) if self._is_early or self.always or row.when is When.ALWAYS]
            for moment in (Moment.BEFORE_STEP, Moment.BEFORE_AVERAGING)
        )

    # Lifecycle of the hooks.

    def attach(self) -> None:
        if self.run.alone:
            return
        self.resume()
        if not _hooked:
            _hooked.append(register_optimizer_step_pre_hook(_before_optimizer_step))
        with LOCK:
            _watching.add(self)

    def detach(self) -> None:
        self.pause()
        _remove(self._gradient_hooks)
        with LOCK:
            _watching.discard(self)

    def resume(self) -> None:
        if self.run.alone or self._hooks:
            return
        # Here, not at its definition, since this imports the compiler, which creating an optimizer has done by now.
        torch.compiler.assume_constant_result(_forward_begins)  # type: ignore[no-untyped-call]
        model = self.flat.model
        _wholes[model], _modules[id(model)] = ref(self), model
        self._hooks = [
            model.register_forward_pre_hook(_BeforeForward()),
            *(
                part.register_state_dict_pre_hook(_BeforeStateDict(ref(self), f"model.{name}".rstrip(".")))
                for name, part in model.named_modules()
                if next(part.parameters(), None) is not None
            ),
        ]
        if self._is_early or self.always:  # a wrapper may contain only a submodule, or call only submodules
            for part in model.modules():
                if part is not model and next(part.parameters(recurse=False), None) is not None:
                    _parts[part], _modules[id(part)] = ref(self), part
                    self._part_hooks.append(part.register_forward_pre_hook(_BeforeForward()))

    def pause(self) -> None:
        """Stop checking forward passes and `state_dict()` of the model, while it holds the mean over all workers."""
        _remove(self._hooks)
        _remove(self._part_hooks)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """`pause` in the context, `resume` at its end; then warn if a state was loaded into the mean model."""
        self.pause()
        loads = self.loads
        try:
            yield
        finally:
            self.resume()
            undone, self.known_loads = self.loads - loads, self.known_loads + self.loads - loads
            training.loaded_in_mean_model(undone)

    # Called by the engine at each moment of a step.

    def before_step(
        self, *, skip: bool = False, found_inf: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> None:
        if not self.steps:
            self.frozen = self.frozen_now()
        self.steps += 1
        if self.is_sharded:
            self.prepare()
        if self.always:
            self.groups = None
        for row in self._before_step:
            row(self)
        if skip or found_inf is not None or scale is not None:
            run_checks(Moment.SPECIAL_STEP, self, Special(skip, found_inf, scale))

    def after_closure(self) -> None:
        training.model_inside_distributed_data_parallel(self)

    def before_averaging(self, *, skip: bool) -> None:
        """Run the checks that precede the averaging of gradients in `step()`; with `skip` this worker sends zeros."""
        self.skips = skip
        for row in self._before_averaging:
            row(self)
        self.made.clear()

    def compare_first(self, *, gradients: bool) -> None:
        """Compare the workers' models before the first average; with `gradients` also their data sets and gradients."""
        if self.starts is not None:
            training.models_begin_apart(self)
        if self.notes is not None and gradients:
            training.data_in_different_orders(self)
            training.same_batches(self)

    def compares_data(self, store: Store, key: str, num_workers: int) -> None:
        """Let workers compare data sets and first gradients by hashes in the run's store, under names with `key`."""
        self.notes, self.num_compared = Notes(store, f"data/{key}"), num_workers

    def after_averaging(self) -> None:
        """Record the averaged gradients after `average_gradients()`, to detect whether the script then changes them."""
        self._hook_gradients()
        self.added = ""
        self.means = self._gradients()

    def means_changed(self) -> bool:
        """Return whether the script changed an averaged gradient. Raises InputError if a backward pass added to one."""
        run_checks(Moment.AFTER_AVERAGING, self)
        return self.means is not None and self._gradients() != self.means

    def after_step(self, *, ends_round: bool = False) -> None:
        """Run the checks after a step; with `ends_round`, also those at the end of a round."""
        self.means = None
        if self._is_early and self.steps >= FIRST_STEPS:
            self._is_early = False
            self._plan()
            if not self.always:
                _remove(self._part_hooks)
                _remove(self._gradient_hooks)
                self.made.clear()
        if ends_round and not self._is_torchs:
            self.prepare()
            run_checks(Moment.ROUND_END, self)
        if self.averages_gradients:
            self.has_stepped = True
            if self.shares:
                with LOCK:
                    held = [slot.parameter for share in self.shares.values() for slot in share]
                self.left = {parameter: version_of(parameter) for parameter in held}

    def forget_loads(self) -> None:
        self.known_loads, self.means = self.loads, None

    def meeting(self) -> None:
        self.check()
        training.frozen_changed(self)

    @contextlib.contextmanager
    def comparing_models(self) -> Iterator[None]:
        """Warn once if an average over all workers, run in the context, changes models that should already be equal."""
        expected = self.averages_gradients and not self.engine.differs and "models part" not in self.given
        before = sample_of(self.flat) if expected else []
        yield
        if before:
            training.models_that_part(self, before)

    # State that checks read.

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
        """Record, as a hook, that `parameter.grad` has changed; autograd's threads call it, so it must not raise."""
        if self.means is not None:
            if not self.added:
                self.added = next(slot.names[0] for slot in self.flat.slots() if slot.parameter is parameter)
        elif parameter.grad is not None:
            self.made[parameter] = version_of(parameter)


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


# Hooks on modules. Forward hooks identify their module by id(), which torch.compile treats as a constant in every
# version; a module is a constant only from torch 2.7 on. The function that they call runs once, during compilation, and
# leaves nothing in the compiled code.

_wholes: WeakKeyDictionary[torch.nn.Module, ReferenceType[Guard]] = WeakKeyDictionary()
# submodules, or whole models of other optimizers
_parts: WeakKeyDictionary[torch.nn.Module, ReferenceType[Guard]] = WeakKeyDictionary()
_modules: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()


NOTHING = contextlib.nullcontext.__exit__  # takes any positional arguments, does nothing and returns None


class ModuleHook:
    """Base of module hooks that are left out of copies and saved files of the module.

    `torch.save(model)` and `copy.deepcopy(model)` copy hooks, too. In the copy, a function of the standard library that
    does nothing replaces this hook, so that the file loads without this package and the copy is not checked.
    """

    def __deepcopy__(self, _memo: object) -> Callable[..., object]:
        return NOTHING

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return getattr, (contextlib.nullcontext, NOTHING.__name__)


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
            training.live_model_used(guard, "model.eval() and a forward pass evaluate")


def averaged_elsewhere(module: torch.nn.Module) -> bool:
    """Return whether a DistributedDataParallel that contains `module` is in a forward pass and averages gradients."""
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
    """Hook before a module's `state_dict()`. It is pickled with the module, and so notices pickling, too."""

    def __init__(self, guard: ReferenceType[Guard], name: str) -> None:
        self._guard, self._name = guard, name

    def __call__(self, _module: torch.nn.Module, _prefix: str, _keep_vars: bool) -> None:
        if (guard := self._guard()) is not None:
            training.live_model_used(guard, f"{self._name}.state_dict() holds")

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        if (guard := self._guard()) is not None:
            training.live_model_used(guard, f"torch.save({self._name}), or pickling it, writes")
        return super().__reduce__()


# One hook that runs before the step of every torch optimizer.

_watching: WeakSet[Guard] = WeakSet()
_hooked: list[object] = []  # torch's handle of the hook, which all runs of the process share


def _before_optimizer_step(optimizer: torch.optim.Optimizer, _arguments: object, _named: object) -> None:
    with LOCK:
        watching = list(_watching)
    for guard in watching:
        if not guard.run.applier.is_stepping and (id(optimizer) in guard.own or guard.share_of(optimizer)):
            run_checks(Moment.OPTIMIZER_STEP, guard, optimizer)
