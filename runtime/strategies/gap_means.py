"""Strategy `neighbor` with a gap: Hop's worker (Luo et al., ASPLOS 2019), which goes on by itself within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from preduce.runtime.strategies.gap_driver import GapDriver, Missing
from preduce.runtime.strategies.gap_log import GapLog
from preduce.runtime.strategies.gap_patience import LackError, wait_until
from preduce.runtime.strategies.gap_queues import PayloadRings
from preduce.runtime.strategies.gap_sizes import hop_of, message_bound, update_capacities
from preduce.runtime.strategies.gap_state import PLACE, packed, unpacked
from preduce.runtime.strategies.gap_weights import weights_of
from preduce.runtime.strategies.one_sided import OneSided
from preduce.runtime.transport.arrays import Snapshots, tensor_of
from preduce.runtime.transport.waiting import GoneError
from preduce.runtime.watch.status import GapStatus
from preduce.schedulers.protocols.hop import Advance, Reduce
from preduce.topo.strategies.gap import Gap, Order, Reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.recorder import Operation
    from preduce.runtime.strategies.base import Run
    from preduce.runtime.strategies.gap_driver import Averaged, Letter
    from preduce.schedulers.protocols.hop import HopEvent
    from preduce.topo.strategies.neighbor import Neighbor


class GapMeans(OneSided):
    """After each round a worker averages with what its in-neighbours sent, as the protocol object `Hop` lets it.

    Serial order: x ← W (x + u), sent after computing. Parallel order: x ← W x + u(x); the parameters with which a round
    is entered leave at once, and travel while it computes. Tokens leave when a round is entered. In the parallel order
    they ride on the update that leaves at the same moment; in the serial order they go by themselves, since to wait for
    the next update would hold up the neighbours for as long as the round computes.

    A worker that skips is some rounds further after `end_round` (`jumped`). One whose data ended goes on taking part
    with its parameters as they are. Buffers are averaged in the mean model only. Costs one snapshot for each round that
    is on its way, in the parallel order one more array, and the queues: `fill` says how much they hold.

    Raises:
        InputError: a policy that asks for optimizer state to travel.
    """

    def __init__(self, strategy: Neighbor, run: Run) -> None:
        assert isinstance(strategy.when, Gap), "others have rounds"
        self.gap, machine = strategy.when, hop_of(strategy)
        self.is_parallel = self.gap.order is Order.PARALLEL
        self.log = GapLog(is_on=run.reducer.recorder.directory is not None)
        self.log.capacities = update_capacities(machine, run.rank)
        buckets = run.flat.buckets
        self.rings = PayloadRings(
            run.rank,
            self.log.capacities,
            [bucket.dtype for bucket in buckets],
            newest_only=self.gap.staleness > 0,
        )
        self.driver = GapDriver(
            machine,
            run.rank,
            self.rings,
            keeps=self.gap.reduce is Reducing.NEWEST,
            log=self.log,
            send=self._send_from_side,
            entered=run.progress.enter,
        )
        model_bytes = sum(bucket.size * bucket.dtype.itemsize for bucket in buckets)
        super().__init__(
            strategy,
            run,
            "a neighbourhood that keeps a gap",
            self.driver.deliver,
            bound=message_bound(machine, model_bytes),
        )
        run.reducer.recorder.attach("gap", self.log.facts)
        self.needs_round_start = self.is_parallel
        self._edge_weights = {s: w for s, t, w in strategy.rounds[0].edges() if t == run.rank}
        self._snapshots = Snapshots()
        self._start: list[torch.Tensor] = []
        """In the parallel order: the parameters with which the round was entered."""
        self._round = self._skipped = 0
        self._restored: dict[str, torch.Tensor] = {}
        self._mailbox.start()

    enters_steps = True

    def status(self) -> GapStatus | None:
        """The tokens in hand, the queues against their proved capacities, and what the mailbox has counted."""
        state = self.driver.state
        if state is None:
            return None
        fill, traffic = self.rings.fill(), self._mailbox.traffic().values()
        return GapStatus(
            tokens=None if self.gap.max_ig is None else tuple(state.tokens),
            updates=tuple(fill[source][0] for source in self.driver.sources),
            capacities=tuple(fill[source][1] for source in self.driver.sources),
            sent=sum(peer.sent.num_bytes for peer in traffic),
            received=sum(peer.received.num_bytes for peer in traffic),
            skipped=self._skipped,
        )

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Before the first round: be in it."""
        if first:
            self._open(step, round_)

    def end_round(self, step: int, round_: int) -> None:
        """Send, reduce and enter the next round, or a later one, waiting where the protocol says so."""
        self._open(step, round_)
        operation = self._begin("gap average", step, round_)
        if not self.is_parallel:
            self._post(operation, self.driver.offer(self._snapshots.take(self._live()), ()))
        self._await(operation, Reduce)
        outcome = self.driver.fire(Reduce())
        self._post(operation, outcome.letters)
        self._average(outcome.averaged, round_, since_start=self.is_parallel)
        advance = self._await(operation, Advance)
        assert isinstance(advance, Advance), "as awaited"
        outcome = self.driver.fire(advance)
        self.jumped = advance.by - 1
        self._skipped += self.jumped
        self._round = round_ + advance.by
        if not self.is_parallel:
            self._post(operation, outcome.letters)
        if self.jumped:
            self._average(outcome.averaged, round_, since_start=False)
        if self.is_parallel:
            self._depart(operation, outcome.letters)
        self.run.reducer.recorder.end(operation)
        self.run.reducer.heartbeat.doing(f"computes step {self._round}")

    def settle(self) -> None:
        """Wait until everything has come that neighbours sent up to now, so that the queues are complete."""
        operation = self._begin("pause of updates", self._round, self._round)
        driver = self.driver
        if not driver.has_left:
            self._until(operation, lambda: driver.has_left, driver.missing)
        self._post(operation, driver.pause())

        def unmarked() -> Missing | None:
            of = driver.unmarked()
            return Missing("the end of what was sent before all paused", of, len(of)) if of else None

        self._until(operation, lambda: not driver.unmarked(), unmarked)
        self.run.reducer.recorder.end(operation)

    def drain(self) -> None:
        """Throw the queues away: all workers begin again from the parameters that their next step finds."""
        self.driver.drop()
        self._start, self._restored = [], {}

    def takes_for_progress(self, round_: int, *, first: bool) -> bool:  # noqa: ARG002 - the signature of all
        """In the parallel order: whatever changed since the round was entered is added to the average."""
        return self.is_parallel and self.driver.state is not None

    def state(self) -> dict[str, torch.Tensor]:
        """The place in the protocol, the tokens, and the queues with their arrays."""
        state = self.driver.state
        return {} if state is None else packed(self.driver.machine, self.run.rank, state, self.rings)

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Keep what a checkpoint has until the run goes on from it.

        Raises:
            InputError: it is not of a run that keeps a gap.
        """
        if PLACE not in state:
            super().load_state(state)
        self._restored = dict(state)

    def resume(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Be where the checkpoint was, with its queues; the update of this round, if sent by then, is not sent again.

        Raises:
            InputError: the queues are of another round.
        """
        if not self._restored:
            return
        state = unpacked(self.driver.machine, self.run.rank, round_, self._restored, self.rings)
        self._restored = {}
        if self.is_parallel:
            self._start = [live.clone() for live in self._live()]
        self._round = round_
        self.driver.open(round_, state)

    def _open(self, step: int, round_: int) -> None:
        """Be in the first round; in the parallel order its update leaves."""
        if self.driver.state is not None:
            return
        self._round = round_
        self.driver.open(round_)
        if self.is_parallel:
            operation = self._begin("first update", step, round_)
            self._depart(operation, ())
            self.run.reducer.recorder.end(operation)

    def _depart(self, operation: Operation, tokens: Sequence[Letter]) -> None:
        """In the parallel order: send the parameters with which a round is entered."""
        live, self._start = self._live(), []  # the memory of the last ones may be used again
        frames = self._snapshots.take(live)
        if live and live[0].device.type != "cpu":
            self._start = [tensor.clone() for tensor in live]
        else:
            self._start = [tensor_of(frame, tensor.dtype) for frame, tensor in zip(frames, live, strict=True)]
        self._post(operation, self.driver.offer(frames, tokens))

    def _average(self, averaged: Averaged | None, own_step: int, *, since_start: bool) -> None:
        """X ← own weight · x + Σ weight · update, ascending; with `since_start` for the x of the round's beginning.

        What was learned since the beginning then stays as it is: x ← (average at the beginning) + (x − beginning).
        """
        assert averaged is not None, "the protocol says what is averaged"
        if not averaged.used:
            return
        own, weights = weights_of(self.gap, self._edge_weights, averaged.step, own_step, averaged.used)
        with torch.no_grad():
            for index, live in enumerate(self._live()):
                mean = self._start[index] * float(own) if since_start else live.mul_(float(own))
                for weight, arrays in zip(weights, averaged.arrays, strict=True):
                    mean.add_(arrays[index].to(live.device), alpha=float(weight))
                if since_start:
                    live.add_(mean.sub_(self._start[index]))

    def _live(self) -> list[torch.Tensor]:
        return [bucket.flat for bucket in self.run.flat.buckets]

    def _begin(self, kind: str, step: int, round_: int) -> Operation:
        num_bytes = sum(bucket.size * bucket.dtype.itemsize for bucket in self.run.flat.buckets)
        members = tuple(sorted({self.run.rank, *self.driver.neighbours}))
        return self.run.reducer.recorder.begin(kind, step, round_, members, num_bytes * len(self.driver.targets))

    def _post(self, operation: Operation, letters: Sequence[Letter]) -> None:
        """Send from the training thread.

        Raises:
            PeerLostError: a receiver takes nothing any more.
        """
        for letter in letters:
            try:
                self._mailbox.send(letter.to, letter.kind, letter.numbers, letter.payload)
            except GoneError as error:
                raise self.run.reducer.failure(operation, error) from None

    def _send_from_side(self, to: int, kind: str, numbers: Sequence[int], payload: Sequence[Any]) -> None:
        self._mailbox.send(to, kind, numbers, payload)

    def _await(self, operation: Operation, kind: type[Reduce | Advance]) -> HopEvent:
        """The event of this kind that the protocol offers, as soon as it does.

        Raises:
            PeerLostError: what it waits for cannot come.
        """
        driver = self.driver

        def is_offered() -> bool:
            return any(isinstance(event, kind) for event in driver.ready())

        self._until(operation, is_offered, driver.missing)
        with driver.condition:
            return next(event for event in driver.ready() if isinstance(event, kind))

    def _until(self, operation: Operation, done: Callable[[], bool], missing: Callable[[], Missing | None]) -> None:
        reducer = self.run.reducer

        def refuse_failure() -> None:
            if self._mailbox.has_failed:  # says of what
                self._mailbox.until(lambda: False, reducer.heartbeat, (), None)

        try:
            wait_until(
                done,
                missing,
                self.driver.condition,
                reducer.heartbeat,
                step=self._round,
                timeout=reducer.timeout,
                failed=refuse_failure,
            )
        except GoneError as error:
            if isinstance(error, LackError):
                operation.members = tuple(sorted({self.run.rank, *error.missing.of}))
            raise reducer.failure(operation, error) from None
