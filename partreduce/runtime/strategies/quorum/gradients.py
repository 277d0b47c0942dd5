"""Strategy `allreduce` at pace 1 with a quorum: eager-SGD's workers (Li et al., PPoPP 2020).

All workers apply the same results in the same order, each in a call of its own. What a script changes from call to
call, such as a learning rate, differs then between two workers that apply the same result, which is warned of.
"""

from __future__ import annotations

import zlib
from functools import partial

import torch

from partreduce.runtime.averaging.mean_model import average_everywhere
from partreduce.runtime.liveness.settings import settings_of
from partreduce.runtime.strategies.base import Arrived, GradientRunner, Run
from partreduce.runtime.strategies.gradient_means import TAKEN_ELSEWHERE
from partreduce.runtime.strategies.quorum.driver import Taken
from partreduce.runtime.strategies.quorum.rounds import room_for
from partreduce.runtime.strategies.quorum.runner import QuorumRunner
from partreduce.runtime.strategies.quorum.sums import GradientSum, GradientSums
from partreduce.runtime.transport.waiting import GoneError
from partreduce.runtime.user_warning import warn_user
from partreduce.schedulers.protocols.partial import Partial
from partreduce.topo.errors import InputError, UnavailableError
from partreduce.topo.strategies.quorum import Quorum

PARTED = (
    "partreduce: workers have applied the same sums with different settings of the optimizer (say a learning rate), so "
    "their models differ: a scheduler that is stepped once a call goes on by calls, and calls take different numbers "
    "of results; with missed: each, step it between average_gradients() and step() and in join(after_averaging=...)"
)


class Settings:
    """A number that tells with which settings a worker has applied its results so far, in order."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.number = 0

    def applied(self) -> None:
        """A result was applied with the settings as they are. O(parameter groups)."""
        self.number = zlib.crc32(repr(settings_of(self._optimizer)).encode(), self.number)


class QuorumGradients(QuorumRunner[GradientSum], GradientRunner):
    """A call adds a gradient to the send buffer and takes the results that are there, waiting for at least one.

    A round is a step of the optimizer, and a call may take several: `each` applies them one after the other, so that
    all workers apply the same sums in the same order; of `latest` only the newest is left. Where all meet (a mean
    model, a checkpoint, the end), every worker stops calling and takes what the others' rounds still bring, until all
    have come: then no gradient is on its way, and all are equally far.

    Buffers such as BatchNorm's are averaged in the mean model, at the end, and where models are synchronised; between
    these each worker keeps its own. A round with a gradient that is not finite is left out by all where a GradScaler
    was at work on any gradient in it. Gradients are summed in host memory, wherever the model lies.
    """

    def __init__(self, when: Quorum, run: Run) -> None:
        everyone = run.everyone
        self.sums = GradientSums(run.flat.buckets, room_for(len(everyone)), num_workers=len(everyone))
        super().__init__(when, run, Partial(when, len(everyone)), self.sums, {everyone})
        self._settings, self._has_warned = Settings(run.applier.optimizer), False
        self.keeps_equal = when.keeps_equal
        self._met = 0
        """The round of this segment in which models were averaged last."""
        self.start()
        self._open()

    def average(self, step: int) -> Arrived:  # noqa: ARG002 - the signature of all
        """Add the gradients to the send buffer, wait for results, apply all but the last and put that one in place."""
        self.refuse_failure()
        self.count_from_here()
        self.sums.refuse_sparse()
        taken = self.call(lambda: self.sums.add(scaled=self.run.applier.scaled))
        last = self._applied(taken, but_last=True)
        if last is not None:
            self._put(last)
            self.driver.release([last])
        self.driver.say(self.run.reducer.heartbeat.doing)
        return Arrived(taken.by - 1, last is not None and last.scaled)

    def end_step(self, step: int) -> None:  # noqa: ARG002 - the signature of all
        """Where it is time for that: the mean of all models."""
        self._settings.applied()
        self._synchronise()

    def gather(self, *, apply: bool = True) -> int:
        """Take part in the others' rounds until all have come here; the rounds by which that went further."""
        self.refuse_failure()
        self.count_from_here()

        def applied(taken: Taken[GradientSum]) -> None:
            if apply:
                self._applied(taken, but_last=False)
            else:
                self.driver.release(taken.sums)
            self._synchronise()

        further = self.end_segment(applied)
        if self.when.keeps_equal:
            self._compare(warns=apply)  # what is dropped was applied by some and not by others
        self._open()
        return further

    def refuse_changed_means(self) -> None:
        """Refuse means that the script changes where a call may deliver several."""
        if self.after_averaging is None:
            raise InputError(
                "average_gradients: this script changes the mean gradient (clips it, say), and a call may deliver "
                "several, of which it sees the last; give the change as a function, too: "
                "`with optimizer.join(after_averaging=...):` around the training loop"
            )

    def refuse_late(self) -> None:
        """Refuse a GradScaler whose verdict comes after the gradients have left."""
        if self.run.applier.scaled:
            raise InputError(
                "average_gradients: sends gradients before a GradScaler's verdict on them is known, and with a quorum "
                "others may apply them by then; leave the averaging to step(), or use bfloat16, which needs no scaler"
            )

    def harm_of_loading(self, round_: int, *, first: bool) -> str:  # noqa: ARG002 - the signature of all
        """While gradients may be on their way, which a model that was loaded by itself has not seen."""
        state = self.driver.state
        return TAKEN_ELSEWHERE if state is not None and state.calls else ""

    def _open(self) -> None:
        """Begin a segment: from now on the others' rounds run, whether this worker has called or not."""
        self._met = 0
        self.open()

    def _applied(self, taken: Taken[GradientSum], *, but_last: bool) -> GradientSum | None:
        """Apply results one after the other; with `but_last` the last is left to the caller."""
        sums = list(taken.sums)
        last = sums.pop() if but_last else None
        for one in sums:
            self.run.applier.apply(partial(self._put, one, changes=True), check_finite=one.scaled)
            self._settings.applied()
            self.driver.release([one])
        return last

    def _put(self, one: GradientSum, *, changes: bool = False) -> None:
        """Make a result the parameters' gradients; with `changes` do to it what the script does to means."""
        self.sums.apply(one)
        if changes and self.after_averaging is not None:
            self.after_averaging()

    def _compare(self, *, warns: bool) -> None:
        """Warn where workers have applied their results with different settings; the collective thread rests here."""
        numbers = torch.zeros(len(self.run.everyone), dtype=torch.float64)  # which holds 32 bits exactly
        numbers[self.run.rank] = self._settings.number
        round_ = self.run.progress.step
        # It ends the last round: who has finished after as many, or waits for all elsewhere, has been in it.
        operation = self.on_host.recorder.begin("comparison of rates", round_, round_, self.run.everyone, 8, lag=1)
        try:
            self.on_host.wait_for(self.communicators[self.run.everyone].all_reduce(numbers), operation)
        except (RuntimeError, GoneError, UnavailableError) as error:
            raise self.on_host.failure(operation, error) from None
        self.on_host.recorder.end(operation)
        if warns and not self._has_warned and bool((numbers != numbers[0]).any()):
            self._has_warned = True
            warn_user(PARTED)

    def _synchronise(self) -> None:
        """Take the mean of all models where the protocol waits for that."""
        driver, every = self.driver, self.when.synchronise_every
        state = driver.state
        if not every or state is None or state.version % every or state.version == self._met:
            return
        self._met = state.version
        self.wait(lambda: not driver.is_meeting)
        round_ = self.base + state.version
        # It counts to the round that it ends, as in `Ending.finish`.
        average_everywhere(self.run.mean_reducers, self.run.everyone, round_, round_ - 1)
