"""Bugs seeded in a protocol's machine: each a sentence, one method that does something else, and where it dies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from partreduce.schedulers.protocols.base import Received, Send


def differing(original, kind, *, seen=None, left=None, told=None, instead=None):
    """What stands in for a method that has a state of a kind among its arguments.

    Args:
        original: the method.
        kind: what a state is.
        seen: the state that it is given, of the real one and the arguments behind it.
        left: the state that comes of it, of that, the one before and the arguments behind it.
        told: its actions, of those of the machine.
        instead: what is called in its place, with the method and the arguments.
    """
    if instead is not None:
        return partial(instead, original)

    def change(*arguments):
        place = next((i for i, one in enumerate(arguments) if isinstance(one, kind)), len(arguments))
        was, rest = next(iter(arguments[place:]), None), arguments[place + 1 :]
        if seen is not None:
            arguments = (*arguments[:place], seen(was, *rest), *rest)
        outcome = original(*arguments)
        if left is None and told is None:
            return outcome
        if not isinstance(outcome, tuple):
            return left(outcome, was, *rest)
        now, actions = outcome
        return left(now, was, *rest) if left else now, told(actions) if told else actions

    return change


class Bugs(dict):
    """By what they say: (the class of the machine that has the bug, the names of configurations in which it dies)."""

    def __init__(self, machine, state):
        super().__init__()
        self._machine, self._state = machine, state

    def __call__(self, method, says, *where, instead=None, **changes):
        """Register a bug; called again with the same sentence, a method more of it. `differing` says the `changes`."""
        kind = self.setdefault(says, (type(self._machine.__name__, (self._machine,), {}), where))[0]
        original, state = getattr(self._machine, method), self._state

        def change(machine, *arguments):
            own = partial(original, machine)
            return differing(own, state, instead=instead and partial(instead, machine), **changes)(*arguments)

        setattr(kind, method, change)


class PartBugs(dict):
    """Bugs of the group generator's system: by what they say, (the part, its method, the changes, where it dies)."""

    def __init__(self, *states):
        super().__init__()
        self._states = states

    def __call__(self, part, method, says, *where, **changes):
        """Register a bug; `differing` says the `changes`."""
        self[says] = (part, method, changes, where)

    def seeded(self, system, says):
        """A copy of a system with one bug."""
        copy = replace(system)
        generator = copy.generator
        parts = {"generator": generator, "locking": generator.locking, "drawing": generator.drawing}
        self.seed({**parts, "worker": copy.worker}[self[says][0]], says)
        return copy

    def seed(self, part, says):
        _, method, changes, _ = self[says]
        setattr(part, method, differing(getattr(part, method), self._states, **changes))


def brings(event, kind):
    """Whether an event is a message of a kind that arrives."""
    return isinstance(event, Received) and isinstance(event.message, kind)


def sends(action, kind):
    return isinstance(action, Send) and isinstance(action.message, kind)


def put(values, place, value):
    """The tuple with another value in one place."""
    return (*values[:place], value, *values[place + 1 :])
