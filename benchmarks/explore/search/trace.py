"""Trace: how a run reaches a state, as a readable sequence of steps and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.explore.search.breadth import Breadth
from benchmarks.explore.search.system import Label, State, System
from benchmarks.explore.search.view import View
from partreduce.schedulers.protocols.base import Note, Received, Send


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One thing that happens: `verb` is step, deliver, lose, repeat, crash, suspect or cut.

    `source` is −1 unless a message moves.
    """

    verb: str
    process: int
    source: int
    text: str
    sends: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A shortest run from the start to a violation, and the state it ends in.

    `loop` is the index of the step at which the run begins to repeat for ever, None for a finite run.
    """

    num_processes: int
    steps: tuple[TraceStep, ...]
    end: View
    loop: int | None = None

    def __str__(self) -> str:
        lines = []
        for number, step in enumerate(self.steps, start=1):
            if self.loop == number - 1:
                lines.append("   -- from here on the run repeats --")
            sends = "; ".join(f"sends {text} to {to}" for to, text in step.sends)
            lines.append(f"{number:3d}. {step.text}" + (f", {sends}" if sends else ""))
        lines.append("end: " + "; ".join(f"{p}: {state}" for p, state in enumerate(self.end.processes)))
        for (u, v), messages in self.end.in_flight.items():
            lines.append(f"     in flight {u} → {v}: " + ", ".join(map(str, messages)))
        return "\n".join(lines)


def path_to(search: Breadth, index: int) -> tuple[list[Label], list[State]]:
    """The transitions from the start to a stored state, and the states with true step numbers and names on the way.

    Stored states stand for many (shifted, renamed) ones, so the run is replayed: from each true state the successor is
    taken whose normal form is the next stored one.
    """
    chain = [index]
    while search.parents[chain[-1]] >= 0:
        chain.append(search.parents[chain[-1]])
    labels: list[Label] = []
    states = [search.system.start()]
    for target in reversed(chain[:-1]):
        label, state = next(
            (label, state)
            for label, state in search.system.successors(states[-1])
            if search.normal(state) == search.states[target]
        )
        labels.append(label)
        states.append(state)
    return labels, states


def trace_of(system: System, labels: list[Label], states: list[State], loop: int | None = None) -> Trace:
    """Word a run."""
    steps = tuple(_worded(system, label, states[number]) for number, label in enumerate(labels))
    return Trace(system.size, steps, View(system, states[-1]), loop)


def _worded(system: System, label: Label, before: State) -> TraceStep:
    machine = system.machine
    event, process = label.event, label.process
    if label.verb == "crash":
        return TraceStep("crash", process, -1, f"{process} crashes")
    if label.verb == "cut":
        return TraceStep("cut", process, -1, f"{process} is cut off")
    sends: tuple[tuple[int, str], ...] = ()
    notes = "".join(f" ({_note(n)})" for n in label.notes)
    if label.verb != "lose" and system.is_running(before, process):
        _, actions = machine.step(process, system.locals.values[before[process]], event)
        sends = tuple((a.to, str(a.message)) for a in actions if isinstance(a, Send))
        notes = "".join(f" ({_note(a.what)})" for a in actions if isinstance(a, Note))
    if label.verb == "suspect":
        return TraceStep("suspect", process, -1, f"{process} takes {event.source} for dead{notes}", sends)
    if isinstance(event, Received):
        what = str(event.message)
        verbs = {"deliver": "arrives", "lose": "is lost", "repeat": "arrives and will arrive again"}
        text = f"{event.source} → {process}: {what} {verbs[label.verb]}{notes}"
        return TraceStep(label.verb, process, event.source, text, sends)
    return TraceStep(label.verb, process, -1, f"{process}: {event}{notes}", sends)


def _note(what: Any) -> str:  # noqa: ANN401 - any machine's notes
    return " ".join(map(str, what)) if isinstance(what, tuple) else str(what)
