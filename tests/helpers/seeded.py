"""Bugs seeded in a protocol's machine: each a sentence, one method that does something else, and where it dies."""

from functools import partial

from partreduce.schedulers.protocols.base import Received, Send


class Bugs(dict):
    """By what they say: (the class of the machine that has the bug, the names of configurations in which it dies)."""

    def __init__(self, machine, state):
        super().__init__()
        self._machine, self._state = machine, state

    def __call__(self, method, says, *where, **changes):
        """Register a bug; called again with the same sentence, a method more of it. `_changed` says the `changes`."""
        kind = self.setdefault(says, (type(self._machine.__name__, (self._machine,), {}), where))[0]
        setattr(kind, method, self._changed(method, **changes))

    def _changed(self, method, *, seen=None, left=None, told=None, instead=None):
        """The method of a machine that differs."""
        original = getattr(self._machine, method)

        def changed(machine, *arguments):
            if instead is not None:
                return instead(machine, partial(original, machine), *arguments)
            place = next((i for i, one in enumerate(arguments) if isinstance(one, self._state)), len(arguments))
            was, rest = next(iter(arguments[place:]), None), arguments[place + 1 :]
            if seen is not None:
                arguments = (*arguments[:place], seen(was, *rest), *rest)
            outcome = original(machine, *arguments)
            if left is None and told is None:
                return outcome
            now, actions = outcome
            return left(now, was, *rest) if left else now, told(actions) if told else actions

        return changed


def hears(event, kind):
    """Whether an event is a message of a kind that arrives."""
    return isinstance(event, Received) and isinstance(event.message, kind)


def sends(action, kind):
    return isinstance(action, Send) and isinstance(action.message, kind)


def put(values, place, value):
    """The tuple with another value in one place."""
    return (*values[:place], value, *values[place + 1 :])
