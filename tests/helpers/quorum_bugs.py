"""Bugs that can be seeded alike in a quorum of all workers and in one of each group."""

from __future__ import annotations

from dataclasses import replace

from partreduce.schedulers.protocols.partial_sides import COMPUTING


class TellsNobody:
    """Who starts a round keeps it to itself."""

    def _started(self, process, state):
        started, _ = super()._started(process, state)
        return started, ()


class JoinsWithAFullQueue:
    """A worker whose queue is full joins the next round."""

    def _may_begin(self, state):
        return super()._may_begin(replace(state, results=()))


class QueueOneTooLong:
    """One result more than C may wait."""

    def _may_begin(self, state):
        return super()._may_begin(replace(state, results=state.results[1:]))


class WaitsForAnEmptyQueue:
    """A worker joins no round while any result waits."""

    def _may_begin(self, state):
        return super()._may_begin(state) and not state.results


class NewestResultReplacesOthers:
    """Results overwrite one another although each is to be applied: a correction is lost."""

    def _finished(self, process, state):
        done, actions = super()._finished(process, state)
        return replace(done, results=done.results[-1:]), actions


class ComputesOnWithoutAResult:
    """A worker that has called goes on computing at once."""

    def _called(self, process, state):
        called, actions = super()._called(process, state)
        return replace(called, stage=COMPUTING), actions


def seeded(bug: type, machine: type) -> type:
    """The machine with a bug in it."""
    return type(bug.__name__, (bug, machine), {"__doc__": bug.__doc__})
