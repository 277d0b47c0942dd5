"""Run a cell of the conformance suite: one idiom (training loop) under one kind of strategy.

The cell is run with partreduce and with the reference. An idiom is a generator that yields after each step. For kinds
without common rounds the workers take their steps in turn, so that results are exact. `yield TOGETHER` announces a part
that all workers run at once, `yield ASIDE` one that waits for workers which still take steps.
"""

import contextlib
import itertools
import threading

import torch

from helpers.conformance.reference import WAIT, PlainOptimizer, Table
from helpers.one_processor import on_one_processor
from partreduce import DistributedOptimizer, load_checkpoint, save_checkpoint

TOGETHER, ASIDE, END = "together", "aside", "end"


class Cell:
    """The functions that an idiom calls; the same idiom runs with partreduce's optimizer and with the reference's."""

    def __init__(self, kind, rank, *, world=None, table=None, folder=None):
        self.kind, self.rank, self.world, self.table, self.folder = kind, rank, world, table, folder
        self.notes, self.made, self.groups = [], [], []

    def wrap(self, inner, model, by=DistributedOptimizer):
        if self.world is None:
            made = PlainOptimizer(self.kind, self.table, self.rank, inner, model, number=len(self.made))
        else:
            made = by(inner, model, self.kind.schedule, timeout=WAIT, world=self.world, **self.kind.options)
            if self.kind.free == "dynamic_groups":
                self._record(made)
        self.made.append(made)
        return made

    def _record(self, optimizer):
        """Record the groups that really averaged, in the form that `Table` takes."""
        runner, pausing = optimizer.runner, []
        average, pause = runner._average, runner.pause

        def averaging(step, seq, members):
            self.groups.append((optimizer.steps, not pausing, seq, members))
            average(step, seq, members)

        def note_pause(place, *, apply=True):
            pausing.append(1)
            steps = pause(place, apply=apply)
            pausing.pop()
            return steps

        runner._average, runner.pause = averaging, note_pause

    def scheduled(self, optimizer):
        """Return the optimizer to give to a learning-rate scheduler."""
        return optimizer.inner if self.world is None else optimizer

    def note(self, model):
        """Record the model's parameters for the comparison."""
        self.notes.append(torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()]))

    def scaler_step(self, scaler, optimizer):
        """Call `scaler.step(optimizer)` and `scaler.update()`; the reference does not use the scaler's state."""
        if self.world is None:
            optimizer.scaler_step(scaler)
        else:
            scaler.step(optimizer)
            scaler.update()

    def reopened(self, model, optimizer, begin):
        """Save a checkpoint and load it into what `begin()` returns; the reference only takes its newest model."""
        if self.world is None:
            optimizer.settle()
            return model, optimizer
        save_checkpoint(optimizer, self.folder)
        steps = optimizer.steps
        optimizer.finish()
        model, optimizer = begin()
        assert load_checkpoint(optimizer, self.folder).steps == optimizer.steps == steps
        return model, optimizer

    @contextlib.contextmanager
    def join(self, optimizer, batches):
        """Run the body inside `optimizer.join()`; `batches` lists the number of batches of each worker."""
        if self.world is None:
            yield
            optimizer.serve(batches)
        else:
            with optimizer.join():
                yield


class Turns:
    """Lets workers take their steps in turn: 0, 1, 2, 0, …; passive workers are skipped."""

    def __init__(self, workers):
        self.changed, self.now, self.aside = threading.Condition(), 0, set()
        self.barrier = threading.Barrier(workers)

    def enter(self, rank, mode):
        if mode == TOGETHER:
            self.barrier.wait(WAIT)
        elif mode == ASIDE:
            self.depart(rank)
        else:
            with self.changed:
                assert self.changed.wait_for(lambda: self.now == rank, WAIT), "timed out waiting for its turn"

    def leave(self, rank, mode):
        if mode == TOGETHER:
            if self.barrier.wait(WAIT) == 0:
                with self.changed:
                    self.now, self.aside = 0, set()
                    self.changed.notify_all()
            self.barrier.wait(WAIT)
        elif mode != ASIDE:
            with self.changed:
                self._next()

    @contextlib.contextmanager
    def of(self, rank, mode=None):
        """Context manager: wait for the turn of this worker, or of all workers together."""
        self.enter(rank, mode)
        try:
            yield
        finally:
            self.leave(rank, mode)

    def depart(self, rank):
        with self.changed:
            self.aside.add(rank)
            if self.now == rank:
                self._next()

    def _next(self):
        for _ in range(self.barrier.parties):
            self.now = (self.now + 1) % self.barrier.parties
            if self.now not in self.aside:
                break
        self.changed.notify_all()


def drive(idiom, cell, turns):
    """Run an idiom to its end and return its recorded models."""
    parts, mode = idiom(cell), TOGETHER
    try:
        while True:
            with contextlib.nullcontext() if turns is None else turns.of(cell.rank, mode):
                mode = next(parts, END)
            if mode == END:
                return cell.notes
    except BaseException:
        if turns is not None:
            turns.depart(cell.rank)
        for optimizer in cell.made:
            if isinstance(optimizer, DistributedOptimizer):
                optimizer.runner.close()
        raise


def run_reference(idiom, kind, groups=None):
    """Run the reference; return the recorded models by rank. `groups` are those that ran under `dynamic_groups`."""
    table, turns = Table(kind.workers, groups), Turns(kind.workers) if kind.in_turn else None
    results, problems = [None] * kind.workers, []

    def work(rank):
        try:
            results[rank] = drive(idiom, Cell(kind, rank, table=table), turns)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            problems.append(error)
            table.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(kind.workers)]
    with on_one_processor():
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    if problems:
        raise problems[0]
    return results


def run_time(ranks, idiom, kind, *, folder=None, **options):
    """Run partreduce; return by rank the recorded models, and the groups that ran under `dynamic_groups`."""
    turns = Turns(kind.workers) if kind.in_turn else None

    def work(world):
        cell = Cell(kind, world.rank, world=world, folder=folder)
        return drive(idiom, cell, turns), cell.groups

    return ranks.run(kind.workers, work, **options)


def problems_of(kind, results, wanted, *, rtol=1e-9, atol=1e-11):
    """Return for each worker how its recorded models differ from the reference's; "" if they do not.

    If two workers of the reference hold equal numbers, those of the run must be equal bit for bit.
    """
    found = [problem_of(mine, should, rtol=rtol, atol=atol) for mine, should in zip(results, wanted, strict=True)]
    if any(found) or kind.in_turn or kind.strategy.kind == "neighbor":  # in a graph each adds up in its own order
        return found
    for (one, first), (other, second) in itertools.combinations(enumerate(zip(results, wanted, strict=True)), 2):
        for place, (mine, should, theirs, same) in enumerate(zip(*first, *second, strict=False)):
            equal = should == same
            if should.dtype == torch.float64 and not torch.equal(mine[equal], theirs[equal]):
                found[other] = f"note {place}: {theirs} has not the bits of worker {one}, {mine}"
    return found


def problem_of(notes, wanted, *, rtol=1e-9, atol=1e-11):
    """Return how one worker's recorded models differ from the reference's; "" if they do not."""
    if len(notes) != len(wanted):
        return f"{len(notes)} notes, not {len(wanted)}"
    for place, (note, should) in enumerate(zip(notes, wanted, strict=True)):
        if not torch.allclose(note, should, rtol=rtol, atol=atol):
            return f"note {place}: {note}, not {should}"
    return ""
