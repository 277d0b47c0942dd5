"""The processes of one machine and their network as a transition system over tuples of small integers.

States that differ only by a renaming of processes under which the machine is the same are one state (`Symmetry`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from partreduce.schedulers.protocols.base import Crashed, Finishing, Received, Send
from partreduce.topo.errors import InputError

MISHAPS = ("losses", "duplicates", "crashes", "suspicions", "cuts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The adversary's options.

    `delay`: a message may arrive at any later time, in order on each channel. Without it messages arrive at once, which
    still reaches every state of the workers for properties that waiting alone can delay. `reorder`: messages of one
    channel may overtake one another. `losses`, `duplicates`, `crashes`: how many messages may be lost or delivered
    twice, and how many processes may stop for ever, in one run. `detect`: the others learn of a crash by a `Crashed`
    message on the channels that the stopped process would have used. `suspicions`: how often a live process may be
    taken for dead; a machine with `suspects` then gets the same message at any time, ahead of all other messages of the
    suspect. `cuts`: how many processes may be cut off. Messages sent to or from one no longer arrive; those under way
    arrive or are lost. Both ends of every channel then get that same message, each at its own time; the process itself
    continues.
    """

    delay: bool = True
    reorder: bool = False
    losses: int = 0
    duplicates: int = 0
    crashes: int = 0
    suspicions: int = 0
    cuts: int = 0
    detect: bool = False

    def __post_init__(self) -> None:
        """Raise an error for combinations without a meaning."""
        if not self.delay and (self.reorder or self.losses or self.duplicates):
            raise InputError("network: messages that arrive at once cannot be reordered, lost or doubled; set delay")
        if self.cuts and self.reorder:
            raise InputError("network: a cut ends each channel at a place, so messages of one keep their order")
        if min(getattr(self, mishap) for mishap in MISHAPS) < 0:
            raise InputError("network: losses, duplicates, crashes, suspicions and cuts are numbers >= 0")


State = tuple[int, ...]
BITS = 32  # two interned numbers share one integer key


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """The state of a crashed process; it equals no state of a machine."""


@dataclass(frozen=True, slots=True)
class ChannelEnd:
    """The end of a channel, after which nothing arrives."""


class Label(NamedTuple):
    """A transition: `event` happens to `process`; `verb` is step, deliver, lose, repeat, crash or cut."""

    verb: str
    process: int
    event: Any
    channel: int
    notes: tuple[Any, ...]


class Move(NamedTuple):
    """The result of an event in one local state: the next local state and the sent messages.

    `rises`: the process leaves step 0, so the slowest step of all may have changed.
    """

    label: Label
    local: int
    sends: tuple[tuple[int, int], ...]
    rises: bool


class Numbering:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self._number: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        number = self._number.get(value)
        if number is None:
            number = self._number[value] = len(self.values)
            self.values.append(value)
        return number


class WorkedOut(dict[int, Any]):
    """A dict that computes the value of a number on first access."""

    def __init__(self, work_out: Callable[[int], Any]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, number: int) -> Any:
        value = self[number] = self._work_out(number)
        return value


class System:
    """A machine under a network. `start` is the first state; `successors` lists the possible transitions."""

    def __init__(self, machine: Any, network: Network) -> None:
        self.machine, self.network = machine, network
        self.size = machine.num_processes
        self.channels = tuple(machine.channels)
        self.locals, self.contents, self.messages = Numbering(), Numbering(), Numbering()
        self.contents(())
        self.stopped = self.locals(StoppedProcess())
        self.severed, self.crashed = self.messages(ChannelEnd()), self.messages(Crashed())
        self.clocks: list[Any] = []
        self.is_shiftable = hasattr(machine, "shifted")
        self._channel_of = {pair: self.size + index for index, pair in enumerate(self.channels)}
        self._ends = [(0, 0)] * self.size + list(self.channels)
        self._budget = self.size + len(self.channels)
        self._places_of = [
            tuple(
                (place, self._ends[place]) for place in range(self.size, self._budget) if process in self._ends[place]
            )
            for process in range(self.size)
        ]
        budgets = tuple(getattr(network, mishap) for mishap in MISHAPS)
        self._budgets: State = budgets if any(budgets) else ()
        self._suspects = tuple(getattr(machine, "suspects", ()))
        if (network.suspicions or network.cuts) and not self._suspects:
            raise InputError("network: suspicions, cuts: in this protocol no one takes another process for dead")
        if network.cuts and (self.is_shiftable or hasattr(machine, "symmetries")):
            raise InputError("network: cuts: states of this protocol are folded, and the ends of channels are not")
        # By process, the moves of a local state; by place, with its target, what comes of a content and a local state.
        self._moves = [(process, WorkedOut(partial(self._work_out, process))) for process in range(self.size)]
        self._deliveries = {
            place: (self._ends[place][1], WorkedOut(partial(self._work_out_delivery, place)))
            for place in range(self.size, self._budget)
        }
        self._pushed = WorkedOut(self._push)
        self._lowered: dict[tuple[int, int, int], int] = {}
        self._suspicions: dict[tuple[int, int, int], Move] = {}

    def start(self) -> State:
        """Return the state with every process in its first state and its first messages on their way."""
        locals_, sends = [], []
        for process in range(self.size):
            state, actions = self.machine.start(process)
            locals_.append(self.locals(state))
            sends += self._sends(process, actions)
        state = [*locals_, *[0] * len(self.channels), *self._budgets]
        self._post(state, tuple(sends))
        return tuple(state)

    def successors(self, state: State, *, lower: bool = False) -> list[tuple[Label, State]]:
        """Return (label, next state) of all possible transitions; `lower` applies `lowered` to the states."""
        found = []
        for process, moves in self._moves:
            for label, local, sends, rises in moves[state[process]]:
                after = list(state)
                after[process] = local
                if sends:
                    self._post(after, sends)
                found.append((label, self.lowered(tuple(after)) if lower and rises else tuple(after)))
        for place, (target, deliveries) in self._deliveries.items():
            if content := state[place]:
                for rest, (label, local, sends, rises) in deliveries[content << BITS | state[target]]:
                    after = list(state)
                    after[place] = rest
                    after[target] = local
                    if sends:
                        self._post(after, sends)
                    found.append((label, self.lowered(tuple(after)) if lower and rises else tuple(after)))
        if self._budgets:
            found += ((label, self.lowered(after) if lower else after) for label, after in self._mishaps(state))
        return found

    def clock(self, local: int) -> int | None:
        """Return the step number of a local state, None if it has none."""
        while len(self.clocks) < len(self.locals.values):
            value = self.locals.values[len(self.clocks)]
            known = self.is_shiftable and not isinstance(value, StoppedProcess)
            self.clocks.append(self.machine.clock(0, value) if known else None)
        clock: int | None = self.clocks[local]
        return clock

    def lowered(self, state: State) -> State:
        """Return the state with step numbers counted from the slowest process that still runs."""
        try:
            by = min([self.clocks[number] for number in state[: self.size]])
        except (IndexError, TypeError):  # a clock not looked up yet, or a process without one
            known = [clock for clock in map(self.clock, state[: self.size]) if clock is not None]
            by = min(known, default=0)
        if not by:
            return state
        after = [self._lower_local(process, state[process], by) for process in range(self.size)]
        after += [self._lower_content(content, by) for content in state[self.size : self._budget]]
        return (*after, *state[self._budget :])

    def finished(self, state: State) -> bool:
        """Return whether a halt in this state is a proper end."""
        machine = self.machine
        if not isinstance(machine, Finishing):
            return False
        values = (self.locals.values[number] for number in state[: self.size])
        return all(isinstance(v, StoppedProcess) or machine.finished(p, v) for p, v in enumerate(values))

    def in_flight(self, state: State) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
        """Yield (source, destination, messages, oldest first) of every channel that holds messages."""
        for place in range(self.size, self._budget):
            if state[place]:
                source, target = self._ends[place]
                yield source, target, self.content(state[place])

    def content(self, number: int) -> tuple[Any, ...]:
        return tuple(self.messages.values[m] for m in self.contents.values[number])

    def is_running(self, state: State, process: int) -> bool:
        return state[process] != self.stopped

    def _sends(self, process: int, actions: tuple[Any, ...]) -> list[tuple[int, int]]:
        return [(self._channel_of[process, a.to], self.messages(a.message)) for a in actions if isinstance(a, Send)]

    def _move(self, verb: str, process: int, local: int, event: object, channel: int = -1) -> Move:
        if local == self.stopped:
            return Move(Label(verb, process, event, channel, ()), local, (), rises=False)
        state, actions = self.machine.step(process, self.locals.values[local], event)
        notes = tuple(a.what for a in actions if not isinstance(a, Send))
        after = self.locals(state)
        rises = self.clock(local) == 0 != self.clock(after)
        return Move(Label(verb, process, event, channel, notes), after, tuple(self._sends(process, actions)), rises)

    def _work_out(self, process: int, local: int) -> tuple[Move, ...]:
        events = () if local == self.stopped else self.machine.ready(process, self.locals.values[local])
        return tuple(self._move("step", process, local, event) for event in events)

    def _work_out_delivery(self, place: int, key: int) -> tuple[tuple[int, Move], ...]:
        """Return the moves of delivering a channel's message; `key` combines its content and the receiver's state."""
        content, local = key >> BITS, key & (1 << BITS) - 1
        source, target = self._ends[place]
        queue = self.contents.values[content]
        if queue[0] == self.severed:
            return ()
        picks = [queue.index(m) for m in dict.fromkeys(queue)] if self.network.reorder else [0]
        return tuple(
            (
                self.contents(queue[:pick] + queue[pick + 1 :]),
                self._move("deliver", target, local, Received(source, self.messages.values[queue[pick]]), place),
            )
            for pick in picks
        )

    def _push(self, key: int) -> int:
        """Return a channel's content with one more message, both combined in `key`; nothing is added behind its end."""
        if self.severed in self.contents.values[key >> BITS]:
            return key >> BITS
        queue = (*self.contents.values[key >> BITS], key & (1 << BITS) - 1)
        return self.contents(tuple(sorted(queue)) if self.network.reorder else queue)

    def _post(self, state: list[int], sends: tuple[tuple[int, int], ...]) -> None:
        """Put messages on their channels; without delay deliver them at once, and the messages that they cause."""
        if self.network.delay:
            for place, message in sends:
                if state[self._ends[place][1]] != self.stopped:
                    state[place] = self._pushed[state[place] << BITS | message]
            return
        waiting = list(sends)
        for place, message in waiting:  # the list grows while it is walked
            target, deliveries = self._deliveries[place]
            if state[place]:  # nothing waits here but the news of a cut, and behind that there is nothing
                continue
            move = deliveries[self._pushed[message] << BITS | state[target]][0][1]
            state[target] = move.local
            waiting += move.sends

    def _mishaps(self, state: State) -> Iterator[tuple[Label, State]]:
        losses, duplicates, crashes, suspicions, cuts = state[self._budget :]
        for place in range(self.size, self._budget):
            if state[place] and (losses or duplicates):
                source, target = self._ends[place]
                for rest, move in self._deliveries[place][1][state[place] << BITS | state[target]]:
                    event = Received(source, move.label.event.message)
                    if losses:
                        label = Label("lose", target, event, place, ())
                        yield label, self._spent(self._with(state, place, rest), "losses")
                    if duplicates and state[target] != self.stopped:
                        after = list(state)
                        after[target] = move.local
                        self._post(after, move.sends)
                        label = Label("repeat", target, event, place, move.label.notes)
                        yield label, self._spent(tuple(after), "duplicates")
        if crashes:
            yield from self._crashes(state)
        if suspicions:
            yield from self._wrong_suspicions(state)
        if cuts:
            yield from self._cuts(state)

    def _cuts(self, state: State) -> Iterator[tuple[Label, State]]:
        for process in sorted({suspect for suspect, _ in self._suspects}):
            if state[process] == self.stopped or self.is_cut_off(state, process):
                continue
            for loses_out, loses_in in product((False, True), repeat=2):
                after = list(state)
                for place, (source, target) in self._places_of[process]:
                    queue = self.contents.values[state[place]]
                    if self.severed in queue or state[target] == self.stopped:
                        continue
                    kept = () if (loses_out if source == process else loses_in) else queue
                    after[place] = self.contents((*kept, self.crashed, self.severed))
                yield Label("cut", process, None, -1, ()), self._spent(tuple(after), "cuts")

    def is_cut_off(self, state: State, process: int) -> bool:
        """Return whether a running process is on the other side of a cut."""
        lives = False
        for place, (source, target) in self._places_of[process]:
            if state[source] != self.stopped != state[target]:
                if self.severed not in self.contents.values[state[place]]:
                    return False
                lives = True
        return lives

    def _crashes(self, state: State) -> Iterator[tuple[Label, State]]:
        for process in range(self.size):
            if state[process] != self.stopped:
                after = list(self._with(state, process, self.stopped))
                for place, (source, target) in enumerate(self._ends[self.size :], start=self.size):
                    if target == process:
                        after[place] = 0
                    elif source == process and self.network.detect:
                        self._post(after, ((place, self.crashed),))
                yield Label("crash", process, None, -1, ()), self._spent(tuple(after), "crashes")

    def _wrong_suspicions(self, state: State) -> Iterator[tuple[Label, State]]:
        for suspect, observer in self._suspects:
            if self.stopped not in (state[suspect], state[observer]):
                move = self._suspicion(suspect, observer, state[observer])
                after = list(self._with(state, observer, move.local))
                self._post(after, move.sends)
                yield move.label, self._spent(tuple(after), "suspicions")

    def _suspicion(self, suspect: int, observer: int, local: int) -> Move:
        key = (suspect, observer, local)
        if key not in self._suspicions:
            self._suspicions[key] = self._move("suspect", observer, local, Received(suspect, Crashed()))
        return self._suspicions[key]

    @staticmethod
    def _with(state: State, place: int, value: int) -> State:
        return (*state[:place], value, *state[place + 1 :])

    def _spent(self, state: State, mishap: str) -> State:
        """Return the state with one such mishap fewer to come."""
        place = self._budget + MISHAPS.index(mishap)
        return self._with(state, place, state[place] - 1)

    def _lower_local(self, process: int, local: int, by: int) -> int:
        key = (process, local, by)
        number = self._lowered.get(key)
        if number is None:
            value = self.locals.values[local]
            lowered = value if isinstance(value, StoppedProcess) else self.machine.shifted(process, value, by)
            number = self._lowered[key] = self.locals(lowered)
        return number

    def _lower_content(self, content: int, by: int) -> int:
        key = (-1, content, by)
        number = self._lowered.get(key)
        if number is None:
            shifted = [self.machine.shifted_message(message, by) for message in self.content(content)]
            queue = tuple(map(self.messages, shifted))
            number = self._lowered[key] = self.contents(tuple(sorted(queue)) if self.network.reorder else queue)
        return number


class Symmetry:
    """The renamings of one system; `canonical` returns the least state among all renamed ones."""

    def __init__(self, system: System) -> None:
        self.system = system
        identity = tuple(range(system.size))
        found = system.machine.symmetries() if hasattr(system.machine, "symmetries") else ()
        self.permutations = [tuple(p) for p in found if tuple(p) != identity]
        self._width = system.size + len(system.channels)
        self._images = [self._image(p) for p in self.permutations]

    def _image(self, p: tuple[int, ...]) -> list[tuple[int, WorkedOut]]:
        """Return, for each place of a renamed state, the place its number comes from, and how the number changes."""
        size, channels = self.system.size, self.system.channels
        places = {pair: size + index for index, pair in enumerate(channels)}
        contents = WorkedOut(partial(self._rename_content, p))
        contents[0] = 0
        image = [(0, contents)] * self._width
        for process in range(size):
            image[p[process]] = (process, WorkedOut(partial(self._rename_local, p, process)))
        for (u, v), place in places.items():
            image[places[p[u], p[v]]] = (place, contents)
        return image

    def canonical(self, state: State) -> State:
        """Return the representative of a state's orbit. O(permutations × width); most images are larger at once."""
        best = state
        for image in self._images:
            for (origin, renamed), least in zip(image, best, strict=False):  # budgets at the end have no name
                number = renamed[state[origin]]
                if number != least:
                    if number < least:
                        best = (*[renamed[state[origin]] for origin, renamed in image], *state[self._width :])
                    break
        return best

    def _rename_local(self, p: tuple[int, ...], process: int, local: int) -> int:
        value, system = self.system.locals.values[local], self.system
        return local if isinstance(value, StoppedProcess) else system.locals(system.machine.renamed(process, value, p))

    def _rename_content(self, p: tuple[int, ...], content: int) -> int:
        renamed = [self.system.machine.renamed_message(m, p) for m in self.system.content(content)]
        queue = list(map(self.system.messages, renamed))
        return self.system.contents(tuple(sorted(queue)) if self.system.network.reorder else tuple(queue))
