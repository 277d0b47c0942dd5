"""Send a worker's whole state to a worker that joins the run: the checkpoint's content and its counters."""

from __future__ import annotations

import base64
import io
import weakref
from pathlib import Path
from typing import Any, Protocol

import torch

from partreduce.runtime.averaging.buffer_rules import BufferRule
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.state.saved_state import StateFile, pack, unpack
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.worker.collective_points import Meeting
from partreduce.runtime.worker.engine import Engine
from partreduce.topo.errors import InputError

BEHIND = (
    "workers may be started again here (--max-restarts), and one that joins does not know how far this script's "
    "learning-rate scheduler has come; call optimizer.register_stateful(scheduler), on all workers, when both are made"
)


class Stateful(Protocol):
    """What has its own state besides the optimizer's: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class Handover:
    """One worker's state, to give and to take (see `elastic.regroup`); the random states stay each worker's own."""

    def __init__(
        self, run: Run, wrapper: torch.optim.Optimizer, runner: Runner, engine: Engine, meeting: Meeting
    ) -> None:
        self._wrapper = weakref.ref(wrapper)  # which has this
        self.run, self.runner, self.engine, self.meeting, self.optimizer = (
            run,
            runner,
            engine,
            meeting,
            engine.optimizer,
        )
        self.objects: list[Stateful] = []
        self._taken: list[dict[str, Any]] | None = None
        self._groups: list[dict[str, Any]] = []

    def add(self, objects: tuple[Stateful, ...]) -> None:
        """Further objects whose states go along; on a worker that has joined they get the donor's at once."""
        for one in objects:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise InputError(f"register_stateful: a {type(one).__name__} has no state_dict() and load_state_dict()")
            if self._taken is not None and len(self.objects) == len(self._taken):
                raise InputError(
                    f"register_stateful: the worker whose state this one has gave {len(self._taken)} objects; all "
                    "workers register the same ones, in one order"
                )
            self.objects.append(one)
            if self._taken is not None:
                one.load_state_dict(self._taken[len(self.objects) - 1])
        for group, taken in zip(self.optimizer.param_groups, self._groups, strict=False):
            group.update(taken)  # a scheduler that is made sets the first learning rate

    def check_unfit(self) -> None:
        """Refuse a script of which one that joins would know too little."""
        steps = (getattr(one, "step", None) for one in (self.optimizer, self._wrapper()))
        if any(hasattr(step, "_wrapped_by_lr_sched") for step in steps) and not self.objects:
            raise InputError(f"scheduler: {BEHIND}")

    def give(self) -> bytes:
        """All of it, as it is between two averages."""
        states, member = io.BytesIO(), self.member
        torch.save([one.state_dict() for one in self.objects], states)
        extra = {
            "counts": self.run.reducer.heartbeat.counts,
            "data": [self.engine.data_epoch, member.views],
            "since": list(member.since.items()),
            "changes_means": self.run.applier.changes_means,
            "rules": self.run.flat.rules,
            "generation": self.engine.uneven_inputs.generation,
            "lineage": [self.meeting.lineage, self.meeting.earlier],
            "objects": base64.b64encode(states.getvalue()).decode(),
        }
        return pack(self._file(), extra, self.meeting.lineage)

    def take(self, data: bytes, turn: int) -> None:
        """Put in place what another gave, and continue with the step before the operation of a turn."""
        tensors, facts = unpack(data, Path("the state of another worker"))
        kept = self._file().restore(tensors, facts, own_random_states=False)
        self._groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        extra = facts["extra"]
        self.run.reducer.heartbeat.counts = tuple(extra["counts"])
        self.engine.uneven_inputs.generation = int(extra["generation"])
        self.meeting.lineage, self.meeting.earlier = extra["lineage"]
        generation, views = extra["data"]
        self.engine.data_epoch = generation[0], generation[1]
        self.member.views = [(after, tuple(members)) for after, members in views]
        self.member.since = dict(extra["since"])
        self._taken = torch.load(io.BytesIO(base64.b64decode(extra["objects"])), weights_only=True)
        steps = self.member.step_of(turn, self.run.steps_per_round)
        self.engine.go_on_from(steps)
        self.engine.catch_up()
        self.run.applier.changes_means = extra["changes_means"]
        self.run.flat.copy_masks([name for name, rule in extra["rules"].items() if rule == BufferRule.FIRST])
        self.runner.load(kept, steps)

    @property
    def member(self) -> Member:
        assert isinstance(self.run.membership, Member), "only elastic runs are joined"
        return self.run.membership

    def _file(self) -> StateFile:
        return StateFile(self.run, self.optimizer, self.runner, self.engine.steps)
