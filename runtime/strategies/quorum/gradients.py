"""Strategy `allreduce` at pace 1 with a quorum: eager-SGD's workers (Li et al., PPoPP 2020)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from preduce.runtime.averaging.mean_model import average_everywhere
from preduce.runtime.averaging.reducer import Reducer
from preduce.runtime.strategies.base import Runner
from preduce.runtime.strategies.quorum.driver import QuorumDriver
from preduce.runtime.strategies.quorum.equality import PARTED, Settings, refuse_unless_plain
from preduce.runtime.strategies.quorum.log import QuorumLog
from preduce.runtime.strategies.quorum.patience import wait_until
from preduce.runtime.strategies.quorum.rounds import RoundsThread, room_for
from preduce.runtime.strategies.quorum.spread import Spread
from preduce.runtime.strategies.quorum.sums import GradientSum, GradientSums
from preduce.runtime.transport.mailbox import Mailbox
from preduce.runtime.transport.nccl import NcclWorld
from preduce.runtime.transport.waiting import GoneError
from preduce.schedulers.protocols.partial import Partial
from preduce.topo.errors import InputError, PreduceError, UnavailableError
from preduce.topo.strategies.quorum import Missed

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.runtime.strategies.base import Run
    from preduce.runtime.strategies.quorum.driver import Taken
    from preduce.runtime.transport.worlds import World
    from preduce.topo.strategies.quorum import Quorum

CLOSE_SECONDS = 1.0
_lines_in_use: WeakKeyDictionary[World, set[str]] = WeakKeyDictionary()


class QuorumGradients(Runner):
    """A call adds a gradient to the send buffer and takes the results that are there, waiting for at least one.

    A round is a step of the optimizer, and a call may take several: `each` applies them one after the other, `sum` at
    once, and of `latest` only the newest is left. With `each` and `sum` all workers apply the same sums in the same
    order. Where all meet (a mean model, a checkpoint, the end), every worker stops calling and takes what the others'
    rounds still bring, until all have come: then no gradient is on its way, and all are equally far.

    Buffers such as BatchNorm's are averaged in the mean model, at the end, and where models are synchronised; between
    these each worker keeps its own. A round with a gradient that is not finite is left out by all where a GradScaler
    was at work on any gradient in it. Gradients are summed in host memory, wherever the model lies.

    Raises:
        InputError: `sum`, and an optimizer other than plain SGD.
    """

    averages_gradients = True
    agrees_on_end = True
    harm_of_loading = "would apply gradients to it that were taken at other parameters"

    def __init__(self, when: Quorum, run: Run) -> None:
        super().__init__(run)
        self.when = when
        if when.missed is Missed.SUM:
            refuse_unless_plain(run.applier.optimizer)
        everyone, reducer = run.everyone, run.reducer
        self.log = QuorumLog(is_on=reducer.recorder.directory is not None)
        self.sums = GradientSums(
            run.flat.buckets, room_for(len(everyone)), num_workers=len(everyone), divide=when.divide
        )
        machine = Partial(when, len(everyone))
        self.driver: QuorumDriver[GradientSum] = QuorumDriver(
            machine, run.rank, self.sums, log=self.log, grace=when.grace * 1e-6
        )
        self._mailbox = Mailbox(
            reducer.world.store,
            run.rank,
            f"{reducer.key} quorum",
            self.driver.deliver,
            max_bytes=0,
            timeout=reducer.timeout,
            heartbeat=reducer.heartbeat,
        )
        self.driver.spread = Spread(self._mailbox, len(everyone))
        self._line = _free_line(reducer.world)
        world = reducer.world.on_host() if isinstance(reducer.world, NcclWorld) else reducer.world
        if not world.has(everyone, name=self._line):
            world.create(everyone, name=self._line)
        self._on_host = Reducer(
            world, (), reducer.recorder, reducer.heartbeat, key=f"{reducer.key} quorum", timeout=reducer.timeout
        )
        self._communicator = world.communicator(everyone, name=self._line)
        self._thread = RoundsThread(self.driver, self.sums, self._communicator, self._on_host, self._rounds_before)
        self._settings, self._has_warned = Settings(run.applier.optimizer, adds_up=when.missed is Missed.SUM), False
        self._base: int | None = None
        """Rounds before this segment."""
        self._met = 0
        """The round of this segment in which models were averaged last."""
        self._clock: Callable[[], int] = lambda: 0
        reducer.recorder.attach("quorum", self.log.facts)
        reducer.recorder.attach("mailbox", self._mailbox.traffic_facts)
        self._mailbox.start()
        self._thread.start()
        self._open()

    def follow(self, clock: Callable[[], int]) -> None:
        """For the numbers of rounds in reports."""
        self._clock = clock

    def before_step(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - the signature of all
        """Add the gradients to the send buffer, wait for results, apply all but the last and put that one in place."""
        assert first, "gradients are averaged in each step"
        self._refuse_failure()
        self.sums.refuse_sparse()
        self.driver.call(lambda: self.sums.add(scaled=self.run.applier.scaled))
        self._wait(self.driver.may_take)
        taken = self.driver.take()
        last = self._applied(taken, but_last=True)
        self.more = taken.by - 1
        self.late_scaled = False
        if last is not None:
            self._put(last)
            self.late_scaled = last.scaled
            self.driver.release([last])
        self.driver.say(self.run.reducer.heartbeat.doing)

    def end_round(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Where it is time for that: the mean of all models."""
        self._settings.applied()
        self._synchronise()

    def gather(self, *, apply: bool = True) -> int:
        """Take part in the others' rounds until all have come here; the rounds by which that went further."""
        self._refuse_failure()
        driver, further = self.driver, 0
        driver.end()
        while not driver.has_ended():
            self._wait(lambda: driver.may_take() or driver.has_ended())
            if driver.may_take():
                taken = driver.take()
                further += taken.by
                if apply:
                    self._applied(taken, but_last=False)
                else:
                    driver.release(taken.sums)
                self._synchronise()
        driver.close_segment()
        if self.when.keeps_equal:
            self._compare()
        self._open()
        return further

    def refuse_changed_means(self) -> None:
        """Refuse means that the script changes where a call may deliver several.

        Raises:
            InputError: as said.
        """
        if self.when.missed is Missed.SUM:
            raise InputError(
                "average_gradients: this script changes the mean gradient (clips it, say), and with missed: sum a call "
                "may deliver the sum of several, so workers would change different sums and part; use missed: each"
            )
        if self.after_averaging is None:
            raise InputError(
                "average_gradients: this script changes the mean gradient (clips it, say), and a call may deliver "
                "several, of which it sees the last; give the change as a function, too: "
                "`with optimizer.join(after_averaging=...):` around the training loop"
            )

    def refuse_late(self) -> None:
        """Refuse a GradScaler whose verdict comes after the gradients have left.

        Raises:
            InputError: as said.
        """
        if self.run.applier.scaled:
            raise InputError(
                "average_gradients: sends gradients before a GradScaler's verdict on them is known, and with a quorum "
                "others may apply them by then; leave the averaging to step(), or use bfloat16, which needs no scaler"
            )

    def takes_for_progress(self, round_: int, *, first: bool) -> bool:  # noqa: ARG002 - the signature of all
        """While gradients may be on their way, which a model that was loaded by itself has not seen."""
        state = self.driver.state
        return state is not None and state.calls > 0

    def close(self) -> None:
        """End the threads."""
        self._end(self._mailbox.close)

    def abandon(self) -> None:
        """The same after a failure, at once."""
        self._end(self._mailbox.abandon)

    def _end(self, end_mailbox: Callable[[], None]) -> None:
        self.driver.close()
        end_mailbox()
        self._thread.join(CLOSE_SECONDS)
        _lines_in_use.get(self.run.reducer.world, set()).discard(self._line)

    def _refuse_failure(self) -> None:
        """Raise what ended the collective thread.

        Raises:
            PeerLostError: a worker is gone or too late.
        """
        error = self.driver.error
        if isinstance(error, PreduceError):
            raise error
        if error is not None:
            raise UnavailableError(f"a partial sum failed ({type(error).__name__}: {error})") from error

    def _look(self) -> None:
        """The same, and what ended the mailbox's thread.

        Raises:
            GoneError: no message comes any more.
        """
        self._refuse_failure()
        if self._mailbox.has_failed:  # says of what
            self._mailbox.until(lambda: False, self.run.reducer.heartbeat, (), None)

    def _open(self) -> None:
        """Begin a segment: from now on the others' rounds run, whether this worker has called or not."""
        self._met = 0
        self._base = None
        self._settings.begin()
        self.driver.open()

    def _rounds_before(self) -> int:
        """For reports: the steps before this segment, asked for before any of its results is taken."""
        if self._base is None:
            self._base = self._clock()
        return self._base

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait for what another thread brings about.

        Raises:
            PeerLostError: it cannot come.
        """
        reducer = self.run.reducer
        try:
            wait_until(
                done,
                self.driver.missing,
                self.driver.condition,
                reducer.heartbeat,
                self.run.everyone,
                timeout=reducer.timeout,
                refuse_failure=self._look,
            )
        except GoneError as error:
            round_ = self._clock()
            operation = reducer.recorder.begin("wait for a partial sum", round_, round_, self.run.everyone, 0)
            raise reducer.failure(operation, error) from None

    def _applied(self, taken: Taken[GradientSum], *, but_last: bool) -> GradientSum | None:
        """Apply results one after the other, or their sum; with `but_last` the last is left to the caller."""
        sums = list(taken.sums)
        if self.when.missed is Missed.SUM and len(sums) > 1:
            whole = self.sums.add_up(sums)
            self.driver.release(sums[1:])
            sums = [whole]
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

    def _compare(self) -> None:
        """Warn where workers have applied their results with different settings; the collective thread rests here.

        Raises:
            PeerLostError: a worker is gone.
        """
        numbers = torch.zeros(len(self.run.everyone), dtype=torch.float64)  # which holds 32 bits exactly
        numbers[self.run.rank] = -1 if self._settings.has_changed else self._settings.number
        round_ = self._clock()
        operation = self._on_host.recorder.begin("comparison of rates", round_, round_, self.run.everyone, 8)
        try:
            self._on_host.wait_for(self._communicator.all_reduce(numbers), operation)
        except (RuntimeError, GoneError, UnavailableError) as error:
            raise self._on_host.failure(operation, error) from None
        self._on_host.recorder.end(operation)
        if not self._has_warned and bool(((numbers != numbers[0]) | (numbers < 0)).any()):
            self._has_warned = True
            warnings.warn(PARTED, stacklevel=6)

    def _synchronise(self) -> None:
        """Take the mean of all models where the protocol waits for that.

        Raises:
            PeerLostError: a worker is gone.
        """
        driver, every = self.driver, self.when.synchronise_every
        state = driver.state
        if not every or state is None or state.version % every or state.version == self._met:
            return
        self._met = state.version
        self._wait(lambda: not driver.is_meeting)
        round_ = self._rounds_before() + state.version
        average_everywhere(self.run.mean_reducers, self.run.everyone, round_, round_)


def _free_line(world: World) -> str:
    """The name of a communicator that no other optimizer of this process uses; the same on all workers."""
    in_use = _lines_in_use.setdefault(world, set())
    name = next(name for number in range(len(in_use) + 1) if (name := f"quorum {number}") not in in_use)
    in_use.add(name)
    return name
