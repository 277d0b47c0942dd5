"""ModelUseChecks: what a script does with the model between steps that a schedule cannot bear, or that it may not mean.

A forward pass inside DistributedDataParallel ends in gradients that are averaged already, so that the schedule does
nothing. Evaluating or saving the live model gives one worker's own, where the schedule averages parameters. A script
that is started again, and loads nothing, trains from the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch.utils.hooks import RemovableHandle

from partreduce.runtime.averaging.digest import digest_of
from partreduce.runtime.averaging.foreign import averaged_elsewhere, check_averaged_gradients
from partreduce.runtime.averaging.gradient_watch import WATCHED_STEPS
from partreduce.runtime.averaging.module_hook import ModuleHook
from partreduce.runtime.environment import RESTART_COUNT
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.user_warning import warn_user


class ModelUseChecks:
    """Watches one model from `attach` to `detach`; a model is watched for the newest optimizer around it."""

    def __init__(self, run: Run, differs: Callable[[], bool]) -> None:
        """`differs` says whether this worker's model may be another one than the mean of all."""
        self.run, self._differs = run, differs
        self.is_due = True
        """Whether step() is to call `refuse`: in the first steps, and once a wrapper has averaged its gradients."""
        self.asks_for_checkpoint = False
        """Whether the script has asked for one to go on from."""
        self._averaged_elsewhere = self._warned = False
        self._hooks: list[RemovableHandle] = []
        self._part_hooks: list[RemovableHandle] = []
        self._looks = 0
        self._frozen: dict[str, str] = {}
        """Fingerprints of the frozen parameters as the first step found them."""

    def attach(self) -> None:
        if not self.run.alone and not self._hooks:
            # Not where they are defined: it imports the compiler, as every optimizer that is made has done by now.
            for looks in (_forward_begins, _part_begins):
                torch.compiler.assume_constant_result(looks)  # type: ignore[no-untyped-call]
            model = self.run.flat.model
            _watch(model, _watched, self)
            self._hooks = [
                model.register_forward_pre_hook(_BeforeForward()),
                *(
                    part.register_state_dict_pre_hook(_BeforeStateDict(ref(self), f"model.{name}".rstrip(".")))
                    for name, part in model.named_modules()
                    if next(part.parameters(), None) is not None
                ),
            ]
            self._watch_parts()

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._leave_parts()

    def _watch_parts(self) -> None:
        """In the first steps: a wrapper may hold a part alone, or call the parts and never the model."""
        if not self.is_due:
            return
        model = self.run.flat.model
        for part in model.modules():
            if part is not model and next(part.parameters(recurse=False), None) is not None:
                _watch(part, _watched_parts, self)
                self._part_hooks.append(part.register_forward_pre_hook(_BeforePart()))

    def _leave_parts(self) -> None:
        for hook in self._part_hooks:
            hook.remove()
        self._part_hooks.clear()

    def refuse(self) -> None:
        """Before a step.

        Raises:
            InputError: its gradients are averaged already.
        """
        if self._averaged_elsewhere:
            check_averaged_gradients()
        if not self._looks:
            self._warn_if_started_again()
            self._frozen = self._frozen_now()
        self._looks += 1
        if self._looks >= WATCHED_STEPS:
            self._leave_parts()
            self.is_due = False

    def _warn_if_started_again(self) -> None:
        """Say once that all workers were started again, and have nothing of what they had learned."""
        has_loaded = self.asks_for_checkpoint or self.run.progress.step or self.run.flat.loads.count
        if has_loaded or self.run.rank or os.environ.get(RESTART_COUNT, "0") == "0":
            return
        warn_user(
            "partreduce: the workers were started again, and begin at step 0: this script loads nothing; call "
            "partreduce.load_checkpoint(optimizer, FOLDER) before the first step, and save_checkpoint now and then"
        )

    def _frozen_now(self) -> dict[str, str]:
        if self.run.alone or (self.run.schedule.strategy.averages_gradients and not self._differs()):
            return {}
        return {name: digest_of([values]) for name, values in self.run.flat.named_frozen()}

    def warn_if_frozen_changed(self) -> None:
        """Where all meet: say once that a frozen parameter has been changed, as a teacher of moving averages is.

        Nobody averages it, so that it follows this worker's own model.
        """
        now = self._frozen_now() if self._frozen else {}
        changed = next((name for name, values in now.items() if values != self._frozen[name]), None)
        if changed is None:
            return
        self._frozen = {}
        warn_user(
            f"partreduce: step {self.run.progress.step}: parameter {changed!r} of worker {self.run.rank}, frozen when "
            "DistributedOptimizer was made, has changed and is not averaged, so it is this worker's own, not the mean "
            "of all; wrap the model first and then freeze it, and it is averaged like the others"
        )

    def gradients_of(self, module: torch.nn.Module) -> None:
        """The forward pass of the model, or of a part of it, begins, and a backward pass may follow."""
        if averaged_elsewhere(module):
            self._averaged_elsewhere = self.is_due = True

    def forward(self) -> None:
        if torch.is_grad_enabled():
            self.gradients_of(self.run.flat.model)
        elif not self.run.flat.model.training:
            self.own_model("model.eval() and a forward pass evaluate")

    def own_model(self, what: str) -> None:
        """Say once that `what` is done with this worker's own model, where it may differ from the mean."""
        if self._warned or not self.run.progress.step or not self._differs():
            return
        self._warned = True
        warn_user(
            f"partreduce: step {self.run.progress.step}: {what} worker {self.run.rank}'s own model, not the mean of "
            "all; do it inside `with optimizer.mean_model():`, which all workers enter, or after optimizer.finish()"
        )


Watched: TypeAlias = "WeakKeyDictionary[torch.nn.Module, Callable[[], ModelUseChecks | None]]"
_watched: Watched = WeakKeyDictionary()
_watched_parts: Watched = WeakKeyDictionary()
"""Apart, since a part of one optimizer's model may be the whole model of another."""
_modules: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()
"""By id(), which is a constant to every torch that compiles a call; a module is one only from 2.7 on."""


def _watch(module: torch.nn.Module, watched: Watched, use: ModelUseChecks) -> None:
    watched[module], _modules[id(module)] = ref(use), module


class _BeforeForward(ModuleHook):
    def __call__(self, module: torch.nn.Module, _arguments: object) -> None:
        _forward_begins(id(module))


class _BeforePart(ModuleHook):
    def __call__(self, part: torch.nn.Module, _arguments: object) -> None:
        _part_begins(id(part))


# Where torch compiles the model these two are called while it does, once, and leave nothing in what it makes.
def _forward_begins(module: int) -> None:
    if (use := _of(module, _watched)) is not None:
        use.forward()


def _part_begins(part: int) -> None:
    if torch.is_grad_enabled() and (use := _of(part, _watched_parts)) is not None:
        use.gradients_of(_modules[part])


class _BeforeStateDict(ModuleHook):
    """The hook that is called before a module's state dict is made, and knows when the module itself is pickled."""

    def __init__(self, use: Callable[[], ModelUseChecks | None], name: str) -> None:
        self._use, self._name = use, name

    def __call__(self, _module: torch.nn.Module, _prefix: str, _keep_vars: bool) -> None:
        self._tell(f"{self._name}.state_dict() holds")

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        self._tell(f"torch.save({self._name}), or pickling it, writes")
        return super().__reduce__()

    def _tell(self, what: str) -> None:
        if (use := self._use()) is not None:
            use.own_model(what)


def _of(module: int, watched: Watched) -> ModelUseChecks | None:
    known = _modules.get(module)
    found = None if known is None else watched.get(known)
    return None if found is None else found()
