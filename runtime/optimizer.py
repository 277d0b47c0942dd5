"""DistributedOptimizer: an ordinary optimizer whose step also does what the schedule asks for."""

from __future__ import annotations

import atexit
import contextlib
import sys
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from preduce.runtime.averaging.drift_correction import CorrectedMeans, chosen_alpha
from preduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy
from preduce.runtime.averaging.mean_model import average_everywhere, mean_of_all
from preduce.runtime.averaging.reducer import Reducer
from preduce.runtime.liveness.facts import facts_of, read_schedule
from preduce.runtime.liveness.handshake import handshake
from preduce.runtime.liveness.heartbeat import Watch
from preduce.runtime.liveness.uneven_inputs import Ends
from preduce.runtime.recorder import Recorder
from preduce.runtime.strategies import build
from preduce.runtime.strategies.base import Run
from preduce.runtime.transport.hierarchical import chosen_form, formed
from preduce.runtime.transport.rendezvous import default_world, forget
from preduce.topo.errors import InputError, PreduceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preduce.runtime.transport.communicators import World
    from preduce.runtime.transport.torch_api import Store
    from preduce.topo.schedule import Schedule

DEFAULT_TIMEOUT = 300.0
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps any torch optimizer; `step()` then averages with the other workers as the schedule says.

    Works wherever an optimizer does: learning-rate schedulers, `GradScaler`, `state_dict`. Every worker constructs it
    with the same schedule and the same model; the constructor compares both before anything is sent, makes all groups
    and copies rank 0's parameters and buffers to all.

    Args:
        optimizer: the optimizer that takes the local steps.
        model: the module it trains; its trainable parameters become views of flat arrays.
        schedule: a Schedule or the path of a schedule file.
        buffers: BatchNorm statistics at each group operation: `average` (default), `local`, or `broadcast` from the
            group's lowest rank. Integer buffers stay local.
        optimizer_state: `local` (default) or `average`, which sends momentum and the like along.
        timeout: seconds that a group operation may wait for its members.
        trace: a directory for one Perfetto trace per worker and for reports of failures.
        initial: `broadcast` (default) or `keep`, to start from parameters that differ between workers.
        drift_correction: for data that differs between workers: `auto`, or its strength α; plain SGD only.
        form: how a group adds up: `ring` (default), or `hierarchical` where it has equally many on each node.
        world: how to reach the others; found from the process group or the launcher's environment by default.

    Raises:
        HandshakeError: workers differ; all of them name the rank and the field.
        UnavailableError: a worker did not arrive within the timeout; all others name it.
        InputError: a model, optimizer or policy that cannot be run as asked.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        schedule: Schedule | str | Path,
        *,
        buffers: BufferPolicy | str = "average",
        optimizer_state: StatePolicy | str = "local",
        timeout: float = DEFAULT_TIMEOUT,
        trace: str | Path | None = None,
        initial: str = "broadcast",
        drift_correction: float | str | None = None,
        form: str = "ring",
        world: World | None = None,
    ) -> None:
        # The base class is not initialised: everything it would hold is the wrapped optimizer's (see __getattr__).
        self.optimizer = _unwrapped(optimizer)
        self.schedule = read_schedule(schedule)
        buffer_policy = _choice(BufferPolicy, "buffers", buffers)
        state_policy = _choice(StatePolicy, "optimizer_state", optimizer_state)
        if initial not in ("broadcast", "keep"):
            raise InputError(f"initial: {initial!r} is not one of broadcast, keep")
        _refuse_combinations(self.optimizer, self.schedule, state_policy)
        self._flat = FlatModel(model, self.optimizer, buffer_policy, state_policy)
        facts, details = facts_of(self.schedule, self._flat, self.optimizer, buffer_policy, state_policy)
        self._alpha = chosen_alpha(drift_correction, self.schedule, self.optimizer)
        facts["drift correction"] = "none" if self._alpha is None else f"{self._alpha:.12g}"
        self._form = chosen_form(form, self._flat.lanes[0].device)
        facts["form"] = self._form.value
        key = 0

        def check(store: Store, rank: int, size: int) -> None:
            nonlocal key
            key = _next_key()
            handshake(store, rank, size, facts, details=details, key=str(key), timeout=timeout)

        if world is None:
            self._world = default_world(self._flat.lanes[0].device, timedelta(seconds=timeout), check)
        else:
            self._world, key = world, world.next_instance()
            handshake(world.store, world.rank, world.size, facts, details=details, key=str(key), timeout=timeout)
        self._start(str(key), timeout, trace, own_process=world is None, broadcast=initial == "broadcast")

    def _start(self, key: str, timeout: float, trace: str | Path | None, *, own_process: bool, broadcast: bool) -> None:
        world = self._world
        if self.schedule.num_workers != world.size:
            raise InputError(
                f"schedule {self.schedule.name!r}: is for {self.schedule.num_workers} workers and this run has "
                f"{world.size}; start {self.schedule.num_workers} or design a schedule for {world.size}"
            )
        world = self._world = formed(world, self._form, self.schedule.cluster)
        world.prepare(self.schedule)
        self._recorder = Recorder(world.rank, trace)
        self._watch = Watch(world.store, world.rank, key, beats=own_process)
        self._ends = Ends(world.store, world.rank, world.size, self._watch, key=key, timeout=timeout)
        self._reducer = Reducer(world, self._flat.lanes, self._recorder, self._watch, key=key, timeout=timeout)
        means = [self._reducer]
        if self._flat.buffer_lanes:
            lanes = self._flat.buffer_lanes
            means.append(Reducer(world, lanes, self._recorder, self._watch, key=f"{key} buffers", timeout=timeout))
        self._run = Run(self.schedule, world.rank, self._flat, self._reducer, tuple(means))
        self._strategy = (
            build(self._run) if self._alpha is None else CorrectedMeans(self._run, self.optimizer, self._alpha)
        )
        self._steps = 0
        self._state = "running"
        self._joining = False
        self._averaged = False
        self._exit: Callable[[], None] | None = None
        if own_process:
            self._exit = self._leave
            atexit.register(self._exit)
        if broadcast:
            self._guard(self._broadcast)

    @property
    def round(self) -> int:
        """The round that this worker is in: steps div pace."""
        return self._steps // self._run.pace

    @property
    def steps(self) -> int:
        """The steps taken so far, skipped ones included."""
        return self._steps

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._world.rank

    @property
    def num_workers(self) -> int:
        """All workers of the run."""
        return self._world.size

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - torch's signature
        """Take one local step and, at the end of a round, average as the schedule says.

        Raises:
            PeerLostError: a member of the group is gone or too late; no parameter was touched by the failed average.
            InputError: the model was moved, changed or finished.
        """
        return self._guard(lambda: self._step(closure, skip=False))

    def skip(self) -> None:
        """Count a step without applying it: for NaN guards. The worker still takes part in its group's average.

        With averaged gradients it contributes a zero gradient and applies the others'.
        """
        self._guard(lambda: self._step(None, skip=True))

    def average_gradients(self) -> None:
        """Average the gradients now instead of in `step()`: for clipping or looking at them. No effect on parameters.

        Only schedules that average gradients (all-reduce in each step) do anything here. With a GradScaler call its
        `unscale_(optimizer)` first.

        Raises:
            PeerLostError: a worker is gone or too late.
        """
        if not self._strategy.averages_gradients or self._averaged:
            return

        def average() -> None:
            self._refuse_unless_running("average gradients")
            if self._joining:
                self._ends.declare(self.round)
            self._strategy.before_step(self._steps, self.round, first=True)
            self._averaged = True

        self._guard(average)

    def _step(self, closure: Callable[[], Any] | None, *, skip: bool) -> Any:  # noqa: ANN401 - what the closure returns
        self._refuse_unless_running("step")
        self._flat.check()
        pace, round_, step = self._run.pace, self.round, self._steps
        if self._joining:
            self._ends.declare(round_)
        found_inf = self._unscale()
        loss = None
        if self._strategy.averages_gradients:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if skip:
                self.optimizer.zero_grad(set_to_none=False)
            if not self._averaged:
                self._strategy.before_step(step, round_, first=True)
            self._averaged = False
            if found_inf is None or self._gradients_are_finite():
                self.optimizer.step()
        else:
            self._strategy.before_step(step, round_, first=step % pace == 0)
            if not skip and not (found_inf is not None and bool(found_inf)):
                loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self._steps += 1
        if self._steps % pace == 0:
            self._strategy.end_round(step, round_)
        return loss

    def _unscale(self) -> torch.Tensor | None:
        """Do what GradScaler asks of optimizers that handle skipping themselves; returns its verdict, None without it.

        GradScaler would not call step() at all on a worker with an infinite gradient, and its group would wait.
        """
        found_inf: torch.Tensor | None = self.__dict__.get("found_inf")
        scale: torch.Tensor | None = self.__dict__.get("grad_scale")
        if found_inf is not None and scale is not None:
            inverse = scale.double().reciprocal().float()
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(inverse.to(parameter.grad.device, parameter.grad.dtype))
        return found_inf

    _step_supports_amp_scaling = True  # tells GradScaler to always call step(); see _unscale

    def _gradients_are_finite(self) -> bool:
        """Whether the averaged gradients, equal on all workers, are finite; all skip the step otherwise."""
        return all(bool(torch.isfinite(lane.scratch()[: lane.size]).all()) for lane in self._flat.lanes)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Put the training loop into it when workers may have unequal amounts of data: all then end at the same round.

        A worker whose loop ends stays in the groups with its parameters as they are, until all loops have ended.
        With averaged gradients it contributes zeros and keeps stepping with the others.

        Raises:
            UnavailableError: a worker is gone or silent.
        """
        self._joining = True
        try:
            yield
            self._guard(self._serve)
        finally:
            self._joining = False

    def _serve(self) -> None:
        self._ends.ended()
        while self._ends.another(self.round):
            self._flat.check()
            round_ = self.round
            if self._strategy.averages_gradients:
                self.optimizer.zero_grad(set_to_none=False)
                self._strategy.before_step(self._steps, round_, first=True)
                self.optimizer.step()
            self._strategy.end_round(self._steps, round_)
            self._steps = (round_ + 1) * self._run.pace

    @contextlib.contextmanager
    def mean_model(self) -> Iterator[torch.nn.Module]:
        """Inside, the model holds the mean over all workers: evaluate or save it there. All workers enter it together.

        Afterwards each worker has its own parameters back, bit for bit.

        Raises:
            PeerLostError: a worker is gone, or not at the same round.
        """
        self._refuse_unless_running("mean_model")
        with self._guarded(), mean_of_all(self._run, self._strategy, self._steps, self.round) as model:
            self._state = "in mean_model()"
            try:
                yield model
            finally:
                if self._state == "in mean_model()":
                    self._state = "running"

    def finish(self) -> None:
        """End the run: compare rounds, make every worker's model the mean over all, write the trace. All call it.

        Raises:
            PeerLostError: a worker ended after another number of rounds, or is gone.
            UnavailableError: a worker did not finish within the timeout.
        """
        if self._state == "finished":
            return
        self._guard(self._finish)

    def _finish(self) -> None:
        self._refuse_unless_running("finish")
        self._flat.check()
        leave = getattr(self._strategy, "leave", None)
        if leave is not None:
            leave()  # the others of this worker's groups may still have rounds to do, so it cannot wait for them here
        members = self._ends.meet(self.round, getattr(self._strategy, "lost", None))
        self._strategy.settle()
        self._strategy.drain()
        connect = getattr(self._strategy, "connect", None)
        if connect is not None:
            connect(members, "finish")
        # It counts to the last round, which all have done: nobody who "finished after" as many rounds is missing in it.
        average_everywhere(self._run, self._steps, self.round - 1, members)
        self._state = "finished"
        self._strategy.close()
        self._watch.stop()
        self._recorder.write_trace()
        if self._exit is not None:
            atexit.unregister(self._exit)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, plus this worker's steps under `preduce`."""
        state = dict(self.optimizer.state_dict())
        state["preduce"] = {"steps": self._steps, "schedule": self.schedule.name}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimizer and, if it is there, the step count; on all workers at the same round."""
        own = state_dict.get("preduce")
        self.optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != "preduce"})
        if own is not None:
            self._strategy.drain()
            self._steps = int(own["steps"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The wrapped optimizer's."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model that were trainable when it was wrapped.

        Raises:
            InputError: a parameter that is not averaged, which would drift apart unnoticed.
        """
        parameters = param_group["params"]
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if not self._flat.holds(parameter):
                raise InputError(
                    f"add_param_group: a parameter of shape {list(parameter.shape)} was not trainable, or not in the "
                    "model, when DistributedOptimizer was made; unfreeze first, then wrap"
                )
        self.optimizer.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - anything
        """Everything else (param_groups, state, defaults, hooks) is the wrapped optimizer's."""
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        """Name the schedule and the wrapped optimizer."""
        place = f"worker {self.rank} of {self.num_workers}"
        return f"DistributedOptimizer({self.schedule.name!r}, {place}, {self.optimizer!r})"

    def _broadcast(self) -> None:
        everyone = self._world.everyone()
        for tensor in [lane.flat for lane in self._flat.lanes if lane.size] + self._flat.frozen + self._flat.buffers():
            part = tensor.detach()
            raw = part.contiguous().view(torch.uint8) if part.dtype is torch.bool else part.contiguous()
            try:
                everyone.broadcast(raw).wait()
            except RuntimeError as error:
                operation = self._recorder.begin("initial broadcast", 0, 0, everyone.members, raw.nbytes)
                raise self._reducer.failure(operation, error) from None
            if raw.data_ptr() != part.data_ptr():
                part.copy_(raw.view(part.dtype))

    def _refuse_unless_running(self, what: str) -> None:
        if self._state != "running":
            raise InputError(f"{what}: the optimizer is {self._state}; it does not {what} then")

    def _guard(self, action: Callable[[], T]) -> T:
        with self._guarded():
            return action()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """After a failure of the run nothing works on; the next optimizer of this process starts afresh."""
        try:
            yield
        except PreduceError as error:
            if not isinstance(error, InputError) and self._state != "finished":
                self._state = "broken after a failure"
                self._world.abandon()
                self._strategy.close()
                self._watch.note("failed", f"gave up in round {self.round}")
                self._watch.record_failure(str(error)[:300])
                self._watch.stop()
                forget(self._world)
                with contextlib.suppress(OSError):
                    self._recorder.write_trace()
            raise

    def _leave(self) -> None:
        """At the interpreter's exit without finish(): tell the others why."""
        error = getattr(sys, "last_value", None)
        if self._state in ("running", "in mean_model()"):
            reason = f"stopped in round {self.round}"
            reason += f" with {type(error).__name__}: {error}" if error is not None else " without calling finish()"
            self._watch.note("left", reason[:300])
            with contextlib.suppress(OSError):
                self._recorder.write_trace()
        self._watch.stop()
        self._strategy.close()
        self._world.abandon()


_keys = 0


def _next_key() -> int:
    """Counts the optimizers of this process."""
    global _keys  # noqa: PLW0603 - the count belongs to the process, as the default world does
    _keys += 1
    return _keys


def _unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if isinstance(optimizer, DistributedOptimizer):
        raise InputError("optimizer: is a DistributedOptimizer already; wrap the plain optimizer once")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer: is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer")
    return optimizer


def _choice(enum: type[E], name: str, value: str) -> E:
    try:
        return enum(value)
    except ValueError:
        raise InputError(f"{name}: {value!r} is not one of {', '.join(member.value for member in enum)}") from None


def _refuse_combinations(optimizer: torch.optim.Optimizer, schedule: Schedule, state: StatePolicy) -> None:
    strategy = schedule.strategy
    gradients = bool(strategy.averages_gradients)
    if gradients and isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("optimizer: LBFGS evaluates its closure several times; average parameters instead (pace > 1)")
    if state is StatePolicy.AVERAGE and gradients:
        raise InputError("optimizer_state='average': with averaged gradients the states are equal already; use 'local'")
    if state is StatePolicy.AVERAGE and getattr(strategy, "overlap", False):
        raise InputError("optimizer_state='average': cannot be delayed with overlap; use 'local' or no overlap")
