"""Run strategy `dynamic_groups`: each round ends with an average over a group from the group service (Prague)."""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary, WeakSet

import torch

from partreduce.runtime.averaging.bucket import rescale_progress
from partreduce.runtime.averaging.mean_model import commit_plain_mean
from partreduce.runtime.elastic.survivors import Survivors
from partreduce.runtime.environment import GENERATOR, GENERATOR_KEYS
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.messages import key_in
from partreduce.runtime.strategies.base import DIFFERENT, ON_TIME, AveragedGradients, Run, Runner, StepResult
from partreduce.runtime.transport.worlds import World
from partreduce.topo.errors import InputError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.dynamic_groups import DynamicGroups

_running: WeakKeyDictionary[World, WeakSet[GeneratedMeans]] = WeakKeyDictionary()


class GeneratedMeans(Runner):
    """Runner for dynamic groups: x ← mean over the group that the group service grants, after each round's last step.

    Without a group x is unchanged. Source: Prague (ASPLOS'20). The next group is requested as soon as the last one is
    done, so the answer arrives during the round. Every worker runs its groups in order of their sequence numbers, which
    excludes circular waits. If a member dies, the others keep their parameters, report it to the group service and
    continue (see `Survivors`); to notice this in time the host waits for the device.
    """

    client: GeneratorClient
    membership: Survivors

    def __init__(self, strategy: DynamicGroups, run: Run) -> None:
        super().__init__(run)
        world = run.reducer.world
        self.world = world
        self.normalizes = strategy.averaging is Averaging.STEP_NORMALIZED
        self._starts: list[torch.Tensor] = []
        address, keys = os.environ.get(GENERATOR), os.environ.get(GENERATOR_KEYS)
        if not address or not keys:
            raise InputError(
                f"schedule {run.schedule.name!r}: needs the group generator; start with `partreduce run --schedule`, "
                f"or start `partreduce generator` and set {GENERATOR} and {GENERATOR_KEYS}"
            )
        others = _running.setdefault(world, WeakSet())
        if any(other.client.address == address for other in others):
            raise InputError(
                f"schedule {run.schedule.name!r}: a group generator hands out groups for one optimizer of a process, "
                "and another one runs; give each its own generator, or finish() the first"
            )
        reducer = run.reducer
        self.client = GeneratorClient(address, key_in(keys, GENERATOR_KEYS), run.rank, timeout=reducer.timeout)
        self.membership = Survivors(
            world, reducer.heartbeat, lambda: self.client.failed, key=reducer.key, timeout=reducer.timeout
        )
        others.add(self)

    def before_step(self, step: int) -> AveragedGradients:
        if step % self.run.steps_per_round == 0:
            self.client.begin()
            if self.normalizes:
                self._starts = [bucket.flat.clone() for bucket in self.run.flat.buckets]
        return ON_TIME

    def after_step(self, step: int) -> StepResult:
        if (step + 1) % self.run.steps_per_round:
            return DIFFERENT
        self.client.begin()
        group = self._group()
        self.membership.forget()
        if group is not None:
            self._average(step, *group)
        self._starts = []  # a round without data has no progress
        self.client.begin()
        return DIFFERENT

    def _group(self) -> tuple[int, tuple[int, ...]] | None:
        """Return (sequence number, ranks) of the round's group, if any. Raises UnavailableError if the run ends."""
        try:
            return self.client.group()
        except UnavailableError as error:
            heartbeat = self.run.reducer.heartbeat
            why = heartbeat.cause(self.run.everyone) if type(error) is UnavailableError else None
            heartbeat.check_without_store()
            raise (error if why is None else UnavailableError(f"{error}; {why}")) from None

    def pause(self, place: str, *, apply: bool = True) -> int:  # noqa: ARG002 - the signature of all
        """Average in the groups granted already, since others wait in them, then request none until the next round.

        `place` names the operation of all workers that follows; `apply` has no effect. Returns 0: no step is taken.
        """
        while (group := self.client.leave()) is not None:
            self._average(0, *group)
        return 0

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - as above
        self.pause("settle")

    def drain(self) -> str:
        self.pause("drain")
        return ""

    @property
    def is_measured(self) -> bool:
        return bool(self._starts)

    def close(self, *, failed: bool = False) -> None:
        super().close(failed=failed)
        _running.get(self.world, WeakSet()).discard(self)
        self.client.close()

    def _average(self, step: int, seq: int, members: tuple[int, ...]) -> None:
        """Average over `members`, group number `seq`: x ← mean. If that fails, restore x and inform the service."""
        reducer, buckets = self.run.reducer, self.run.flat.buckets

        def why() -> str | None:
            return (
                "was declared void by the generator"
                if self.client.is_void(seq)
                else self.membership.stop_reason(members)
            )

        reduction, own = None, []
        if self.membership.connected(members, str(seq), why):
            if self.normalizes and self._starts:
                own = [bucket.flat.clone() for bucket in buckets]
                for bucket, start in zip(buckets, self._starts, strict=True):
                    rescale_progress(bucket, start, self.run.progress_factor(members))
                self._starts = []
            # Members count different rounds but the same groups, so the group's number takes the place of the round.
            reduction = reducer.attempt("average", step, seq, Group(members), abort_reason=why)
        if reduction is None:
            with torch.no_grad():
                for bucket, values in zip(buckets, own, strict=bool(own)):
                    bucket.flat.copy_(values)
            self.world.destroy([members])  # even if it never started here, since another member may have started it
            self.membership.failed()
            self.client.broke()
            return
        reducer.commit(reduction, commit_plain_mean)
