"""End a run in order, whatever the reason, and run operations of all workers between steps."""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from partreduce.runtime.averaging.buffer_rules import AVERAGED
from partreduce.runtime.averaging.mean_model import average_model, monitored_barrier
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.launcher.processes import add_error_translator
from partreduce.runtime.transport.communicators import first_line
from partreduce.runtime.transport.rendezvous import forget, hosts_store
from partreduce.runtime.transport.store import DEATHS, Notes, Pauses, root_store
from partreduce.runtime.transport.waiting import Deadline
from partreduce.runtime.user_warning import warn_user
from partreduce.runtime.worker.engine import Engine
from partreduce.topo.errors import InputError, PartreduceError, PeerFailedError
from partreduce.topo.strategies.base import HasGroups

Result = TypeVar("Result")

OF_COLLECTIVES = re.compile("gloo|nccl|Connection (closed|reset) by peer", re.IGNORECASE)  # in torch's own errors
LAST_WORD_SECONDS = 2.0  # how long to wait for the launcher's note about a death after a connection has closed

RUNNING = "running"
EVALUATING = "in mean_model()"
FINISHED = "finished"
BROKEN = "broken after a failure"


class Ending:
    """The end of one worker's run: by `finish`, after a failure inside `guarded`, or when the interpreter exits."""

    def __init__(self, engine: Engine, *, own_process: bool) -> None:
        self.run, self.engine = engine.run, engine
        self.state = RUNNING
        self._own_process = own_process
        self._refused = (-1, "")  # step and text of the last InputError; text, since an error keeps its frames
        if own_process:
            atexit.register(self.leave)
            if self.run.flat.sharders.shards:
                add_error_translator(self.lost_shard)

    @property
    def is_finished(self) -> bool:
        return self.state == FINISHED

    @property
    def is_running(self) -> bool:
        return self.state in (RUNNING, EVALUATING)

    def check_unless_running(self, what: str) -> None:
        """Raise InputError after the end of the run or inside `mean_model`; the error names `what`, the call."""
        if self.state != RUNNING:
            raise InputError(f"{what}: the optimizer is {self.state}; call it before finish() and outside mean_model()")

    def guard(self, action: Callable[[], Result]) -> Result:
        with self.guarded():
            return action()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """In the context, let any PartreduceError but InputError end the run; a new optimizer then connects again."""
        try:
            if self.state == RUNNING:
                self.run.reducer.heartbeat.check_without_store()
            yield
        except PartreduceError as error:
            self.after(error)
            raise

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.state = EVALUATING
        try:
            with self.engine.guard.paused():
                yield
        finally:
            if self.state == EVALUATING:
                self.state = RUNNING

    def finish(self) -> None:
        """Wait for all workers at the same round, set the model to the mean over all, and close everything."""
        self.check_unless_running("finish")
        # First, since members of this worker's groups may still have rounds to run that need this worker.
        self.engine.pause("finish")
        run, runner, round_ = self.run, self.engine.runner, self.engine.round
        self.engine.guard.meeting()
        members = self.engine.uneven_inputs.meet(round_, runner.membership.lost_workers)
        runner.settle(ends=True)
        # It belongs to the last round, which all have run, so no worker that finished after it is missing.
        if isinstance(member := run.membership, Member):
            member.average_model(run.mean_reducers, member.members, self.engine.steps, round_ - 1)
            member.leave()
            runner.drain()  # only now, since after a failure all members restart operations in flight
        else:
            runner.drain()
            runner.membership.connect(members, "finish")
            with self.engine.guard.comparing_models():
                average_model(run.mean_reducers, members, self.engine.steps, round_ - 1)
        self.state = FINISHED
        self.engine.guard.detach()
        self._warn_if_apart(round_)
        runner.close()
        run.reducer.heartbeat.stop()
        run.reducer.recorder.write_trace()
        if self._own_process:
            atexit.unregister(self.leave)

    def _warn_if_apart(self, rounds: int) -> None:
        """Warn if in `rounds` rounds not all workers had averaged with one another, directly or through others."""
        schedule = self.run.schedule
        if self.run.rank or not self.engine.steps or not isinstance(schedule.strategy, HasGroups):
            return
        if rounds < (needed := schedule.rounds_to_connect()):
            warn_user(
                f"the run ended after {self.engine.steps} steps, before all workers had averaged with one another: "
                f"this schedule connects them in {needed} rounds, {needed * self.run.steps_per_round} steps; "
                "finish() has averaged once"
            )

    def after(self, error: PartreduceError) -> None:
        """Handle an error: unless it is an InputError, end the run, destroying the groups and notifying the others."""
        if isinstance(error, InputError):
            self._refused = (self.engine.steps, _text(error))
            return
        if self.state in (FINISHED, BROKEN):
            return
        self.state = BROKEN
        self.engine.guard.detach()
        world, heartbeat = self.run.reducer.world, self.run.reducer.heartbeat
        world.abandon()
        self.engine.runner.close(failed=True)
        heartbeat.note("failed", f"gave up in round {self.engine.round}")
        heartbeat.record_failure(str(error)[:300])
        heartbeat.note("explained", "")
        heartbeat.stop()
        forget(world)
        self.run.reducer.recorder.write_trace()
        if self._own_process:
            atexit.unregister(self.leave)  # which would keep the model until then
            if hosts_store(self.run.rank, world.store):
                atexit.register(heartbeat.linger, len(self.run.everyone))

    def lost_shard(self, error: BaseException) -> PartreduceError | None:
        """Return an error that names the failed rank of a sharded model, if one explains torch's `error`; else None."""
        if self.state == FINISHED or not isinstance(error, RuntimeError) or not OF_COLLECTIVES.search(str(error)):
            return None
        notes, deadline = Notes(root_store(self.run.reducer.world.store), DEATHS), Deadline(LAST_WORD_SECONDS)
        pauses = Pauses()
        with contextlib.suppress(RuntimeError, PartreduceError):  # the store may be gone too
            while True:
                for rank in range(dist.get_world_size()):
                    if (death := notes.read(str(rank))) is not None:
                        return PeerFailedError(
                            f"rank {rank} {death}; without it torch's own collectives fail ({first_line(error)})"
                        )
                if deadline.is_over:
                    break
                pauses.sleep()
        return None

    def leave(self) -> None:
        """At the interpreter's exit, close everything; if the run ends without `finish()`, first record why."""
        heartbeat = self.run.reducer.heartbeat
        if self.state in (RUNNING, EVALUATING):
            error = getattr(sys, "last_value", None)
            refused_in, refusal = self._refused
            text = _text(error) if error is not None else refusal if refused_in == self.engine.steps else ""
            reason = f"stopped in round {self.engine.round}"
            reason += f" with {text}" if text else " without calling finish()"
            heartbeat.note("left", " ".join(reason.split())[:300])
            if not text and self.engine.steps and not self.engine.traits.averages_gradients:
                sys.stderr.write(
                    f"partreduce: worker {self.run.rank} ended in round {self.engine.round} without "
                    "optimizer.finish(), so it kept its own model, not the mean of all; call finish() before saving\n"
                )
            self.run.reducer.recorder.write_trace()
        self.engine.runner.close(failed=True)
        self.run.reducer.world.abandon()
        if self.state != FINISHED and hosts_store(self.run.rank, self.run.reducer.world.store):
            heartbeat.linger(len(self.run.everyone))
        heartbeat.stop()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().removesuffix(":")


class Meeting:
    """Operations of all workers between steps (exchange of facts, broadcast); a failure in one ends the run."""

    def __init__(self, ending: Ending) -> None:
        self.run, self.ending = ending.run, ending
        self.lineage = ""  # lineage of this run's checkpoints, once it has saved or resumed; equal on all workers
        self.earlier: list[str] = []  # for sharded models: this run's checkpoints, newest last

    def exchange(
        self, what: str, mine: Mapping[str, object], members: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Gather `mine`, JSON values by name, from all workers or from `members`; return them in order of the members.

        `what` names the operation. Called once per gathering (see `Heartbeat`), whose number makes keys unique.
        """
        reducer, engine, members = self.run.reducer, self.ending.engine, tuple(members or self.run.everyone)
        with self.ending.guarded():
            reducer.flush()  # read the device's checks of earlier operations before anything is saved
            with reducer.recorded(what, engine.steps, engine.round, members) as operation:
                place = f"exchange/{reducer.heartbeat.gatherings}/{what}"
                gathered = monitored_barrier(reducer, place, operation, json.dumps(mine))
        return [json.loads(gathered[rank]) for rank in members]

    def broadcast(self, members: Sequence[int] | None = None) -> None:
        """Copy parameters and buffers from worker 0, or from the first of `members`, to all of them."""
        if self.run.alone:
            return
        flat, reducer = self.run.flat, self.run.reducer
        with self.ending.guarded():
            everyone = reducer.world.communicator(self.run.everyone if members is None else members)
            tensors = [bucket.flat for bucket in flat.buckets if bucket.size] + flat.frozen + flat.buffers()
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            # It belongs to no round (lag=1): a worker that is done may already wait elsewhere, or have finished.
            with reducer.recorded("initial broadcast", 0, 0, everyone.members, num_bytes, lag=1) as operation:
                for tensor in tensors:
                    part = tensor.detach()
                    raw = part.contiguous()
                    if raw.dtype not in AVERAGED:  # as bytes, since backends lack some dtypes
                        raw = raw.view(-1).view(torch.uint8)
                    reducer.wait_for(everyone.broadcast(raw), operation)
                    if raw.data_ptr() != part.data_ptr():
                        part.copy_(raw.view(part.dtype).view(part.shape))
