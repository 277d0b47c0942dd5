"""Run strategy `allreduce` for gradients with partial all-reduces, as workers of eager-SGD (Li et al., PPoPP 2020)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch

from partreduce.runtime.averaging.mean_model import average_model
from partreduce.runtime.liveness.heartbeat import MET
from partreduce.runtime.liveness.settings import settings_of
from partreduce.runtime.strategies.base import DIFFERENT, AveragedGradients, Run, Runner, StepRequest, StepResult
from partreduce.runtime.strategies.protocol_driver import EventLog, QuorumEvent, wait_for_missing
from partreduce.runtime.strategies.quorum.driver import (
    GradientSum,
    GradientSums,
    QuorumDriver,
    Spread,
    StartedRound,
    TakenResult,
)
from partreduce.runtime.transport.tags import TAG_LENGTH, tag_of
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.runtime.transport.work import Background
from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.schedulers.protocols.partial import Partial, Share
from partreduce.topo.errors import InputError, PartreduceError, UnavailableError
from partreduce.topo.strategies.partial import PartialAllReduce

KIND = "partial sum"


def room_for(num_workers: int) -> int:
    """Return how many further numbers a round sums: a count per worker, the GradScaler flag, and the tag."""
    return num_workers + 1 + TAG_LENGTH


def write_counts(begun: StartedRound, room: torch.Tensor, tag: tuple[int, ...], *, place: int, size: int) -> None:
    """Write this worker's further numbers for a round into `room`, which is summed with the gradients.

    They are its number of gradients at index `place` (0 at the `size` − 1 others), the GradScaler flag, and the tag.
    """
    numbers = [0] * size
    numbers[place] = len(begun.share.gradients)
    room.copy_(torch.tensor([*numbers, int(begun.payload.scaled), *tag], dtype=room.dtype))


def read_counts(room: torch.Tensor, tag: tuple[int, ...], round_: int, *, size: int) -> tuple[list[Share], bool]:
    """Return how many gradients of each worker are in a round, and whether a GradScaler was used, from `room`.

    Raises PeerGoneError if the tags in `room` do not add up to `size` times `tag`: the workers summed different rounds.
    """
    if room[-TAG_LENGTH:].tolist() != [size * number for number in tag]:
        raise PeerGoneError("its members ran different rounds at the same time (their tags differ)")
    *counts, scaled = map(int, room[: size + 1].tolist())
    return [Share(round_, tuple(range(count))) for count in counts], bool(scaled)


CLOSE_SECONDS = 1.0
_lines_in_use: WeakKeyDictionary[World, set[str]] = WeakKeyDictionary()

PARTED = (
    "partreduce: workers have applied the same sums with different settings of the optimizer (say a learning rate), so "
    "their models differ: a scheduler that is stepped once a call continues by calls, and calls take different numbers "
    "of results; with missed: each, step it between average_gradients() and step() and in join(after_averaging=...)"
)


class QuorumGradients(Runner):
    """Runner for eager-SGD: a step adds gradients to the send buffer and applies at least one round's result.

    A round sums the gradients of the workers that are ready, and its result is one optimizer step. If several results
    wait, a training step applies all in order (`missed: each`) or only the newest (`latest`). Before a mean model, a
    checkpoint or the end, workers stop training and take the results of the others' rounds until all workers have
    arrived. The model's buffers are averaged in the mean model, at the end, and where models are synchronized. With a
    GradScaler all workers skip a round with a gradient that is not finite. Gradients are summed in host memory.
    """

    def __init__(self, sync: PartialAllReduce, run: Run) -> None:
        super().__init__(run)
        self.sync = sync
        everyone, reducer = run.everyone, run.reducer
        self.sums = GradientSums(run.flat.buckets, room_for(len(everyone)), num_workers=len(everyone))
        reducer.heartbeat.unequal = MET
        self.log = EventLog(QuorumEvent, is_on=reducer.recorder.directory is not None)
        machine = Partial(sync, len(everyone))
        self.driver = QuorumDriver(machine, run.rank, self.sums, log=self.log, grace=sync.grace * 1e-6)
        self._line, self._is_concluded = _free_line(reducer.world), False
        world = reducer.world.on_host()
        if not world.has(everyone, name=self._line):
            world.create(everyone, name=self._line)
        self.communicator = world.communicator(everyone, name=self._line)
        mailbox = self._open_mailbox("quorum", self.driver.deliver)  # last, so that no earlier error leaves it open
        self.driver.spread = Spread(mailbox, len(everyone))
        self.on_host = reducer.of((), "quorum", world)
        self._thread = Background(self._run_rounds, name="partreduce-rounds", stop=self.driver.close)
        self._base: int | None = None
        self._settings = 0  # checksum of the optimizer settings with which each result was applied
        self._has_warned = False
        self._met = 0  # last round of this segment in which models were averaged
        reducer.recorder.attach("quorum", self.log.facts)
        mailbox.start()
        self._thread.start()
        self._open()

    def _run_rounds(self) -> None:
        """Main function of the collective thread: take part in this worker's rounds, one after the other."""
        try:
            while (begun := self.driver.begin()) is not None:
                self._run_round(begun)
        except BaseException as error:  # noqa: BLE001 - raised in the training thread
            self.driver.fail(error)

    def _run_round(self, begun: StartedRound) -> None:
        reducer, line, round_ = self.on_host, self.communicator, self.base + begun.round
        arrays, room = self.sums.arrays(begun.payload), self.sums.room(begun.payload)
        tag = tag_of(reducer.key, KIND, begun.segment, begun.round)
        write_counts(begun, room, tag, place=line.place, size=line.size)
        num_bytes = sum(array.nbytes for array in arrays)
        operation = reducer.recorder.begin(KIND, round_, round_, line.members, num_bytes)
        try:
            works = [line.all_reduce(array) for array in arrays]
            for work in works:
                reducer.wait_for(work, operation)
            shares, scaled = read_counts(room, tag, begun.round, size=line.size)
        except (RuntimeError, PeerGoneError, PartreduceError) as error:
            if self.driver.is_closing:  # not reported as a failure, since the run ends
                raise UnavailableError(f"the run ended during {operation}") from None
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        self.sums.arrived(begun.payload, scaled=scaled)
        self.driver.finish(begun, shares)
        self.driver.publish_activity(reducer.heartbeat.doing)

    def before_step(self, step: int) -> AveragedGradients:  # noqa: ARG002 - the signature of all
        """Send the gradients, wait for results, take a step for each but the last, and set the gradients to the last.

        Returns the steps taken already, and whether a GradScaler had scaled the last result.
        """
        self.check_failure()
        self.count_from_here()
        self.sums.check_sparse()
        self.driver.call(lambda: self.sums.add(scaled=self.run.applier.scaled))
        self.wait(self.driver.may_take)
        taken = self.driver.take()
        last = self._apply_result(taken, but_last=True)
        if last is not None:
            self._put(last)
            self.driver.release([last])
        self.driver.publish_activity(self.run.reducer.heartbeat.doing)
        return AveragedGradients(taken.by - 1, last is not None and last.scaled)

    def after_step(self, step: int) -> StepResult:  # noqa: ARG002 - the signature of all
        self._note_settings()
        self._synchronize()
        return DIFFERENT

    def pause(self, place: str, *, apply: bool = True) -> int:  # noqa: ARG002 - the signature of all
        """Take part in others' rounds until all workers have reached the operation `place`.

        Returns how many rounds, each one step, it took; with `apply=False` their gradients are dropped.
        """
        self.check_failure()
        self.count_from_here()
        driver, further = self.driver, 0
        driver.end()
        while not driver.has_ended():
            self.wait(lambda: driver.may_take() or driver.has_ended())
            if driver.may_take():
                taken = driver.take()
                further += taken.by
                if apply:
                    self._apply_result(taken, but_last=False)
                else:
                    driver.release(taken.sums)
                self._synchronize()
        driver.close_segment()
        if self.sync.keeps_equal:
            self._compare(warns=apply)  # dropped results may have been applied by some workers only
        self._open()
        return further

    def check_step(self, request: StepRequest) -> None:
        """Raise InputError for `average_gradients()` with a GradScaler, or changed means without `after_averaging`."""
        if request.early and self.run.applier.scaled:
            raise InputError(
                "average_gradients: sends gradients before a GradScaler's verdict on them is known, and with a quorum "
                "others may apply them by then; leave the averaging to step(), or use bfloat16, which needs no scaler"
            )
        if request.changed and self.run.applier.after_averaging is None:
            raise InputError(
                "average_gradients: this script changes the mean gradient (clips it, say), and a call may deliver "
                "several, of which it sees the last; give the change as a function, too: "
                "`with optimizer.join(after_averaging=...):` around the training loop"
            )

    @property
    def is_measured(self) -> bool:
        """Whether gradients may be in flight, which do not fit a model that is loaded now."""
        return self.driver.state is not None and bool(self.driver.state.calls)

    def _open(self) -> None:
        """Start a segment: from now on this worker takes part in the others' rounds, even while it has no gradient."""
        self._met, self._base = 0, None
        self.driver.open()

    def _apply_result(self, taken: TakenResult, *, but_last: bool) -> GradientSum | None:
        """Take an optimizer step for each sum in `taken`; with `but_last` not for the last, which is returned."""
        sums = list(taken.sums)
        last = sums.pop() if but_last else None
        for one in sums:
            self.run.applier.apply(partial(self._put, one, changes=True), check_finite=one.scaled)
            self._note_settings()
            self.driver.release([one])
        return last

    def _note_settings(self) -> None:
        settings = repr(settings_of(self.run.applier.optimizer))
        self._settings = zlib.crc32(settings.encode(), self._settings)

    def _put(self, one: GradientSum, *, changes: bool = False) -> None:
        """Copy a mean into the parameters' gradients; with `changes` also call the script's `after_averaging`."""
        self.sums.apply(one)
        if changes and (change := self.run.applier.after_averaging) is not None:
            change()

    def _compare(self, *, warns: bool) -> None:
        """Compare the optimizer settings of all workers' steps, by an all-reduce; with `warns` warn if they differ."""
        numbers = torch.zeros(len(self.run.everyone), dtype=torch.float64)  # exact for 32-bit integers
        numbers[self.run.rank] = self._settings
        round_ = self.run.progress.step
        # It belongs to the last round (lag=1): a worker that has finished, or waits elsewhere, has taken part in it.
        everyone = self.run.everyone
        with self.on_host.recorded("comparison of rates", round_, round_, everyone, 8, lag=1) as operation:
            self.on_host.wait_for(self.communicator.all_reduce(numbers), operation)
        if warns and not self._has_warned and bool((numbers != numbers[0]).any()):
            self._has_warned = True
            warn_user(PARTED)

    def _synchronize(self) -> None:
        driver, every = self.driver, self.sync.synchronize_every
        state = driver.state
        if not every or state is None or state.version % every or state.version == self._met:
            return
        self._met = state.version
        self.wait(lambda: not driver.is_meeting)
        round_ = self.base + state.version
        # It belongs to the round that it ends, as in `Ending.finish`.
        average_model(self.run.mean_reducers, self.run.everyone, round_, round_ - 1)

    def count_from_here(self) -> None:
        """Make this step the base from which rounds are counted until the next operation of all workers."""
        if self._base is None:
            self._base = self.run.progress.step

    @property
    def base(self) -> int:
        """Number of steps before the last operation of all workers, for reports; equal on all workers."""
        return self.run.progress.step if (base := self._base) is None else base

    def settle(self, *, ends: bool = False) -> None:
        """If the run `ends`, record it: a later optimizer may then reuse the name of this communicator."""
        self._is_concluded = self._is_concluded or ends

    def close(self, *, failed: bool = False) -> None:
        self.driver.close()
        super().close(failed=failed)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._is_concluded:  # otherwise an unfinished sum could match one of the next optimizer
            _lines_in_use.get(self.run.reducer.world, set()).discard(self._line)

    def check_failure(self) -> None:
        error = self.driver.error
        if isinstance(error, PartreduceError):
            raise error
        if error is not None:
            raise UnavailableError(f"a partial sum failed ({type(error).__name__}: {error})") from error

    def _look(self) -> None:
        """Raise the error that ended the collective thread or a mailbox's thread, if one did."""
        self.check_failure()
        for mailbox in self.mailboxes:
            mailbox.check_failure()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until another thread makes `done()` true. Raises PeerFailedError if a worker fails or at the timeout."""
        reducer, everyone = self.run.reducer, self.run.everyone
        try:
            wait_for_missing(
                done,
                self.driver.missing,
                self.driver.condition,
                reducer.heartbeat,
                reducer.timeout,
                why=lambda _: reducer.heartbeat.failure_reason(everyone),
                check_failure=self._look,
                describe=lambda lack: f"this worker waited for {lack.what}",
            )
        except PeerGoneError as error:
            round_ = self.run.progress.step
            operation = reducer.recorder.begin("wait for a partial sum", round_, round_, self.run.everyone, 0)
            raise reducer.failure(operation, error) from None


def _free_line(world: World) -> str:
    """Return a communicator name that no other optimizer of this process uses; equal on all workers.

    Workers take names when they create optimizers and give them back in `finish()`, in the order of the script, so all
    choose the same.
    """
    in_use = _lines_in_use.setdefault(world, set())
    name = next(name for number in range(len(in_use) + 1) if (name := f"quorum {number}") not in in_use)
    in_use.add(name)
    return name
