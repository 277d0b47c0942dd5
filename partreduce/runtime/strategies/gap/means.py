"""Average with neighbors within a proved iteration gap, as Hop's workers do (Luo et al., ASPLOS 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from partreduce.runtime.averaging.bucket import copy_to
from partreduce.runtime.liveness.heartbeat import SKIPPED
from partreduce.runtime.recorder import Operation
from partreduce.runtime.strategies.base import ON_TIME, AveragedGradients, OneSided, Run, StepResult
from partreduce.runtime.strategies.gap.driver import (
    PLACE,
    GapDriver,
    Letter,
    NeighborUpdates,
    Outcome,
    Recipients,
    wait_in_step,
)
from partreduce.runtime.strategies.protocol_driver import EventLog, GapEvent, Missing, PeerWaitError
from partreduce.runtime.transport.mailbox import MESSAGES, Bound
from partreduce.runtime.transport.updates import Layout, PayloadRings, UpdateSender, add_updates
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.schedulers.protocols.hop import Advance, Hop, Reduce, hop_of, weights_of
from partreduce.topo.strategies.iteration_gap import IterationGap, UpdateOrder
from partreduce.topo.strategies.neighbor import NeighborAveraging


class GapMeans(OneSided):
    """Runner for Hop (Luo et al., ASPLOS 2019): averages with its in-neighbors' parameters after each round.

    Let W be the weights and u the worker's change in a round. An update is the parameters that a worker sends to its
    neighbors; a token lets a neighbor enter one more round. Serial order: x ← W (x + u); the update is sent after
    computing, and tokens before it, when a round is entered. Parallel order: x ← W x + u(x); update and tokens are sent
    together when a round is entered. A worker without data continues with unchanged parameters. Buffers are averaged in
    the mean model only. Memory: the queues, a snapshot per round in flight, and one array of model size (two in the
    parallel order with skips).
    """

    def __init__(self, strategy: NeighborAveraging, run: Run) -> None:
        assert isinstance(strategy.sync, IterationGap), "others have rounds"
        self.gap, machine = strategy.sync, hop_of(strategy.rounds[0], strategy.sync)
        self.is_parallel = self.gap.update_order is UpdateOrder.DPSGD
        self.layout = Layout(run.flat.arrays())
        from partreduce.verify.gap_bounds import capacities_of  # loaded only if needed

        capacities = capacities_of(machine.graph, self.gap, run.rank)
        by_source = {str(source): capacity for source, capacity in capacities.updates.items()}
        self.log = EventLog(GapEvent, is_on=run.reducer.recorder.directory is not None, capacities=by_source)
        self.rings = PayloadRings(run.rank, capacities.slots, self.layout, newest_only=self.gap.staleness > 0)
        self.driver = GapDriver(machine, run.rank, self.rings, log=self.log, send=self._send)
        bound = message_bound(machine, self.layout)
        super().__init__(strategy, run, "a neighborhood that keeps a gap", self.driver.deliver, bound=bound)
        capacity = max(capacities.sent.values(), default=1)
        self._sender = UpdateSender(self._mailbox, self.layout, capacity=capacity, streams=run.reducer.streams)
        run.reducer.recorder.attach("gap", self.log.facts)
        if self.gap.skip is not None:
            run.reducer.heartbeat.unequal = SKIPPED
        self._edge_weights = {s: w for s, t, w in strategy.rounds[0].edges() if t == run.rank}
        self._start: list[torch.Tensor] = []  # parallel order: the parameters at the start of the round
        self._scratch: list[torch.Tensor] = []  # serial order, or after a skip: the change made by an average
        self._round = 0
        self._mailbox.start()

    def before_step(self, step: int) -> AveragedGradients:
        round_, taken = divmod(step, self.run.steps_per_round)
        if not taken:
            self._open(step, round_)
        return ON_TIME

    def end_round(self, step: int, round_: int) -> StepResult:
        """Send this worker's update, average, and enter the next round, or a later one; return how many it skips."""
        self._open(step, round_)
        operation = self._begin("gap average", step, round_)
        if not self.is_parallel:
            self._post(operation, self.driver.offer(()))
        outcome = self._await(operation, Reduce)
        self._post(operation, outcome)
        self._average(outcome.averaged, round_, since_start=self.is_parallel)
        outcome = self._await(operation, Advance)
        skipped = outcome.by - 1
        self._round = round_ + outcome.by
        if not self.is_parallel:
            self._post(operation, outcome)
        if skipped:
            self._average(outcome.averaged, round_, since_start=False)
        if self.is_parallel:
            self._depart(operation, outcome.letters)
        self.run.reducer.recorder.end(operation)
        self.run.reducer.heartbeat.doing(f"computes step {self._round}")
        return StepResult(skipped)

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - the signature of all
        """Wait until all messages that neighbors have sent have arrived, so that a checkpoint has complete queues."""
        operation = self._begin("pause of updates", self._round, self._round)
        driver = self.driver
        if not driver.has_left:
            self._until(operation, lambda: driver.has_left, driver.missing, pausing=True)
        self._post(operation, Outcome(driver.pause()))

        def missing_mark() -> Missing | None:
            of = driver.unmarked()
            return Missing("the end of what was sent before all paused", of, len(of)) if of else None

        self._until(operation, lambda: not driver.unmarked(), missing_mark, pausing=True)
        self.run.reducer.recorder.end(operation)

    def drain(self) -> str:
        """Clear the queues of neighbors' parameters; the next step starts from this worker's own. Returns ""."""
        self.driver.drop()
        self._start = []
        return ""

    @property
    def is_measured(self) -> bool:
        """Whether the parameters minus those at the round's start are added to an average later (parallel order)."""
        return self.is_parallel and self.driver.state is not None

    def state(self) -> dict[str, torch.Tensor]:
        return self.driver.packed()

    def load(self, state: dict[str, torch.Tensor], step: int) -> None:
        """Restore a checkpoint's queues, to continue with step `step`; updates sent before it are not sent again."""
        if PLACE not in state:
            super().load(state, step)
            return
        round_ = step // self.run.steps_per_round
        if self.is_parallel:
            self._start = [live.clone() for live in self.run.flat.arrays()]
        self._round = round_
        self.driver.unpack(round_, state)

    def _open(self, step: int, round_: int) -> None:
        if self.driver.state is not None:
            return
        self._round = round_
        self.driver.open(round_)
        if self.is_parallel:
            operation = self._begin("first update", step, round_)
            self._depart(operation, ())
            self.run.reducer.recorder.end(operation)

    def _depart(self, operation: Operation, tokens: Sequence[Letter]) -> None:
        """Send the parameters and `tokens` to the neighbors at the start of a round, as in the parallel order."""
        self._start = copy_to(self._start, self.run.flat.buckets)
        self._post(operation, self.driver.offer(tokens))

    def _average(self, averaged: NeighborUpdates | None, own_step: int, *, since_start: bool) -> None:
        """Average: x ← own weight · x + Σ weight · update, in ascending order of the updates' sources.

        x is the parameters; with `since_start` those at the round's start, and later changes stay added. The difference
        is computed in separate memory, so a signal that interrupts this leaves the parameters unchanged or averaged.
        """
        assert averaged is not None, "the protocol says what is averaged"
        if not averaged.used:
            return
        _, weights = weights_of(self.gap, self._edge_weights, averaged.step, own_step, averaged.used)
        live, streams = self.run.flat.arrays(), self.run.reducer.streams
        with torch.no_grad():
            if not since_start and not self._scratch:
                self._scratch = [torch.empty_like(array) for array in live]
            arrays, change = (self._start, self._start) if since_start else (live, self._scratch)
            add_updates(arrays, averaged.arrays, weights, self.layout, into=change, streams=streams)
            for now, difference in zip(live, change, strict=True):
                now.add_(difference)

    def _begin(self, kind: str, step: int, round_: int) -> Operation:
        num_bytes = sum(bucket.size * bucket.dtype.itemsize for bucket in self.run.flat.buckets)
        members = tuple(sorted({self.run.rank, *self.driver.neighbors}))
        return self.run.reducer.recorder.begin(kind, step, round_, members, num_bytes * len(self.driver.targets))

    def _post(self, operation: Operation, outcome: Outcome) -> None:
        try:
            for letter in outcome.letters:
                if letter.kind == "mark":  # in order, after all parts of earlier updates
                    self._mailbox.send(letter.to, letter.kind, letter.numbers)
                else:
                    self._mailbox.send_newest(letter.to, letter.kind, letter.numbers, urgent=True)
            if outcome.update:
                self._send(outcome.update)
        except PeerGoneError as error:
            raise self.run.reducer.failure(operation, error) from None

    def _send(self, recipients: Recipients) -> None:
        """Send this step's update (the parameters) to `recipients`: ranks, each with the integers of its message.

        The mailbox's thread calls it for an update that is allowed late; the arrays do not change until then.
        """
        self._sender.send("update", self._start if self.is_parallel else self.run.flat.arrays(), recipients)

    def _await(self, operation: Operation, kind: type[Reduce | Advance]) -> Outcome:
        driver = self.driver
        self._until(operation, lambda: driver.offers(kind), driver.missing)
        return driver.fire(kind)

    def _until(
        self,
        operation: Operation,
        done: Callable[[], bool],
        missing: Callable[[], Missing | None],
        *,
        pausing: bool = False,
    ) -> None:
        reducer = self.run.reducer
        try:
            wait_in_step(
                self._round,
                done,
                missing,
                self.driver.condition,
                reducer.heartbeat,
                timeout=reducer.timeout,
                check_failure=self._mailbox.check_failure,
                pausing=pausing,
                paused=frozenset if pausing else self.driver.paused,
            )
        except PeerGoneError as error:
            if isinstance(error, PeerWaitError):
                operation.members = tuple(sorted({self.run.rank, *error.missing.of}))
            raise reducer.failure(operation, error) from None


def message_bound(machine: Hop, layout: Layout) -> Bound:
    """Return the limit of messages in flight to a neighbor; equal on all workers, and never reached by the protocol.

    A queue of received updates holds at most 1 + `max_ig` (the largest iteration gap); without tokens, 1 + (staleness +
    1) · (workers − 1), since no path between two workers is longer.
    """
    setting = machine.setting
    longest = (setting.staleness + 1) * max(1, machine.num_processes - 1)
    capacity = 1 + (longest if setting.max_ig is None else setting.max_ig)
    # For each update at most one token message and one acknowledgement, and the mark of a pause.
    return layout.bound([capacity], MESSAGES + 2 * capacity)
