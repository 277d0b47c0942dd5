"""Random walks of protocol machines, and a check that renaming processes does not change their behavior."""

from random import Random

from partreduce.schedulers.protocols.base import Note, Received, Send


class Walk:
    """One random run of a machine: the next event is any possible one; without `in_order` messages may overtake.

    Events that a `slow` process starts itself are ten times as rare as others.
    """

    def __init__(self, machine, seed, *, in_order=True, slow=()):
        self.machine, self.chance, self.in_order, self.slow = machine, Random(seed), in_order, slow
        self.states, self.flying = [], []
        for process in range(machine.num_processes):
            state, actions = machine.start(process)
            self.states.append(state)
            self._send(process, actions)

    def _send(self, process, actions):
        self.flying += [(process, a.to, a.message) for a in actions if isinstance(a, Send)]

    def moves(self):
        """Return (process, event, index of the message in flight or None) for every possible event."""
        own = [(p, e) for p, state in enumerate(self.states) for e in self.machine.ready(p, state)]
        seen, arriving = set(), []
        for place, (source, to, message) in enumerate(self.flying):
            if not self.in_order or (source, to) not in seen:
                seen.add((source, to))
                arriving.append((to, Received(source, message), place))
        return [(p, e, None) for p, e in own] + arriving

    def steps(self, length):
        """Yield (process, state before, event, state after, actions) for up to `length` events."""
        for _ in range(length):
            moves = self.moves()
            if not moves:
                return
            weights = [0.1 if place is None and process in self.slow else 1.0 for process, _, place in moves]
            process, event, place = self.chance.choices(moves, weights)[0]
            if place is not None:
                del self.flying[place]
            before = self.states[process]
            after, actions = self.machine.step(process, before, event)
            yield process, before, event, after, actions
            self.states[process] = after
            self._send(process, actions)

    def deliver(self):
        """Deliver messages in the order in which they were sent until none is in flight; no process starts anything."""
        while self.flying:
            source, to, message = self.flying.pop(0)
            self.states[to], actions = self.machine.step(to, self.states[to], Received(source, message))
            self._send(to, actions)


def _by_text(actions):
    return sorted(actions, key=repr)


def check_renaming(machine, seed, *, own=lambda event, p: event, note=lambda what, p: what, length=60):
    """Check that a machine under new names does the same, renamed; `own` renames ready events and `note` notes."""

    def event_of(event, p):
        if isinstance(event, Received):
            return Received(p[event.source], machine.renamed_message(event.message, p))
        return own(event, p)

    def actions_of(actions, p):
        return [
            Send(p[a.to], machine.renamed_message(a.message, p)) if isinstance(a, Send) else Note(note(a.what, p))
            for a in actions
        ]

    permutations = machine.symmetries()
    assert tuple(range(machine.num_processes)) in permutations
    for p in permutations:
        for v in range(machine.num_processes):
            state, actions = machine.start(v)
            image, sent = machine.start(p[v])
            assert machine.renamed(v, state, p) == image
            assert _by_text(sent) == _by_text(actions_of(actions, p))
    for process, before, event, after, actions in Walk(machine, seed).steps(length):
        for p in permutations:
            image = machine.renamed(process, before, p)
            ready = [own(e, p) for e in machine.ready(process, before)]
            assert _by_text(machine.ready(p[process], image)) == _by_text(ready)
            moved, sent = machine.step(p[process], image, event_of(event, p))
            assert moved == machine.renamed(process, after, p)
            assert _by_text(sent) == _by_text(actions_of(actions, p))
