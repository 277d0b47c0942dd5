"""A cell of the conformance suite: one idiom under one kind, run by the run-time and by the reference.

An idiom is a generator: it yields after each step. Kinds whose workers run freely take their steps in turn, so that
their results are exact; `yield TOGETHER` announces a part that all workers do at once, and `yield ASIDE` one that waits
for others who still take steps.
"""

import contextlib
import itertools
import threading

import torch

from helpers.conformance.reference import WAIT, PlainOptimizer, Table
from partreduce import DistributedOptimizer, load_checkpoint, save_checkpoint

TOGETHER, ASIDE = "together", "aside"


class Cell:
    """What an idiom works with; the same code runs with the run-time's optimizer and with the reference's."""

    def __init__(self, kind, rank, *, world=None, table=None, folder=None):
        self.kind, self.rank, self.world, self.table, self.folder = kind, rank, world, table, folder
        self.notes, self.made, self.groups = [], [], []

    def wrap(self, inner, model, by=DistributedOptimizer):
        """The optimizer under test, or the reference's."""
        if self.world is None:
            made = PlainOptimizer(self.kind, self.table, self.rank, inner, model, number=len(self.made))
        else:
            made = by(inner, model, self.kind.schedule, timeout=WAIT, world=self.world, **self.kind.options)
            if self.kind.free == "dynamic_groups":
                self._record(made)
        self.made.append(made)
        return made

    def _record(self, optimizer):
        """Note the groups that really averaged, as `Table` takes them."""
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
        """What a learning-rate scheduler is given."""
        return optimizer.inner if self.world is None else optimizer

    def note(self, model):
        """Remember the model, to be compared."""
        self.notes.append(torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()]))

    def scaler_step(self, scaler, optimizer):
        """`scaler.step(optimizer); scaler.update()`; the reference has no scaler's book-keeping."""
        if self.world is None:
            optimizer.scaler_step(scaler)
        else:
            scaler.step(optimizer)
            scaler.update()

    def reopened(self, model, optimizer, begin):
        """What `begin()` makes, with what the run has saved; the reference only has the newest model then."""
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
        """`with optimizer.join()`, where each worker has so many batches."""
        if self.world is None:
            yield
            optimizer.serve(batches)
        else:
            with optimizer.join():
                yield


class Turns:
    """Lets workers take their steps in turn: 0, 1, 2, 0, …; those who stand aside are passed over."""

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
                assert self.changed.wait_for(lambda: self.now == rank, WAIT), "its turn did not come"

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
    """Run an idiom to its end; returns its notes."""
    parts, mode = idiom(cell), TOGETHER
    try:
        while True:
            if turns is not None:
                turns.enter(cell.rank, mode)
            try:
                following = next(parts)
            except StopIteration:
                return cell.notes
            finally:
                if turns is not None:
                    turns.leave(cell.rank, mode)
            mode = following
    except BaseException:
        if turns is not None:
            turns.depart(cell.rank)
        for optimizer in cell.made:
            if isinstance(optimizer, DistributedOptimizer):
                optimizer.runner.close()
        raise


def run_reference(idiom, kind, groups=None):
    """What the reference gives, by rank; `groups` are those that a generated schedule ran."""
    table, turns = Table(kind.workers, groups), Turns(kind.workers) if kind.in_turn else None
    results, problems = [None] * kind.workers, []

    def work(rank):
        try:
            results[rank] = drive(idiom, Cell(kind, rank, table=table), turns)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            problems.append(error)
            table.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(kind.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    if problems:
        raise problems[0]
    return results


def run_time(ranks, idiom, kind, *, folder=None, **options):
    """What the run-time gives, by rank: its notes, and the groups that a generated schedule ran."""
    turns = Turns(kind.workers) if kind.in_turn else None

    def work(world):
        cell = Cell(kind, world.rank, world=world, folder=folder)
        return drive(idiom, cell, turns), cell.groups

    return ranks.run(kind.workers, work, **options)


def problems_of(kind, results, wanted, *, rtol=1e-9, atol=1e-11):
    """By worker, where its notes are not those of the reference; empty where they are.

    Where two workers of the reference hold equal numbers, those of the run have to hold the same bits.
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
    """Where one worker's notes are not those of the reference."""
    if len(notes) != len(wanted):
        return f"{len(notes)} notes, not {len(wanted)}"
    for place, (note, should) in enumerate(zip(notes, wanted, strict=True)):
        if not torch.allclose(note, should, rtol=rtol, atol=atol):
            return f"note {place}: {note}, not {should}"
    return ""
