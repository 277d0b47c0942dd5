"""Bugs planted in protocol machines: a sentence, one changed method, and the configurations that must find it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from partreduce.schedulers.protocols.base import Received, Send


def differing(original, kind, *, seen=None, left=None, emits=None, instead=None):
    """Return a changed version of a method that has a state of class `kind` among its arguments.

    Args:
        original: the method.
        kind: the class of states.
        seen: makes the state that the method gets, from the real one and the arguments after it.
        left: makes the resulting state, from the method's, the one before and the arguments after it.
        emits: makes the resulting actions, from the method's.
        instead: is called in place of the method, with the method and its arguments.
    """
    if instead is not None:
        return partial(instead, original)

    def change(*arguments):
        place = next((i for i, one in enumerate(arguments) if isinstance(one, kind)), len(arguments))
        was, rest = next(iter(arguments[place:]), None), arguments[place + 1 :]
        if seen is not None:
            arguments = (*arguments[:place], seen(was, *rest), *rest)
        outcome = original(*arguments)
        if left is None and emits is None:
            return outcome
        if not isinstance(outcome, tuple):
            return left(outcome, was, *rest)
        now, actions = outcome
        return left(now, was, *rest) if left else now, emits(actions) if emits else actions

    return change


class Bugs(dict):
    """The bugs of a machine by sentence: (the machine's class with the bug, configurations that must find it)."""

    def __init__(self, machine, state):
        super().__init__()
        self._machine, self._state = machine, state

    def __call__(self, method, says, *where, instead=None, **changes):
        """Register a bug, or one more method for a known sentence; `changes` are arguments of `differing`."""
        kind = self.setdefault(says, (type(self._machine.__name__, (self._machine,), {}), where))[0]
        original, state = getattr(self._machine, method), self._state

        def change(machine, *arguments):
            own = partial(original, machine)
            return differing(own, state, instead=instead and partial(instead, machine), **changes)(*arguments)

        setattr(kind, method, change)


class PartBugs(dict):
    """The bugs of the generator's system by sentence: (part, method, changes, configurations that must find it)."""

    def __init__(self, *states):
        super().__init__()
        self._states = states

    def __call__(self, part, method, says, *where, **changes):
        """Register a bug; `changes` are arguments of `differing`."""
        self[says] = (part, method, changes, where)

    def seeded(self, system, says):
        copy = replace(system)
        generator = copy.generator
        parts = {"generator": generator, "locking": generator.locking, "drawing": generator.drawing}
        self.seed({**parts, "worker": copy.worker}[self[says][0]], says)
        return copy

    def seed(self, part, says):
        _, method, changes, _ = self[says]
        setattr(part, method, differing(getattr(part, method), self._states, **changes))


def brings(event, kind):
    """Return whether an event is the arrival of a message of this class."""
    return isinstance(event, Received) and isinstance(event.message, kind)


def sends(action, kind):
    return isinstance(action, Send) and isinstance(action.message, kind)


def put(values, place, value):
    return (*values[:place], value, *values[place + 1 :])
