"""The explorer: visits every interleaving of a protocol, for small configurations.

It takes a protocol as a pure state machine (`schedulers.protocols.base.Machine`) and lets an adversary in the network
delay messages, and optionally reorder, lose and repeat them or stop processes. For each property the answer is "holds
in N states", the shortest run that breaks it, or "unknown" if a limit ended the search; an incomplete search never
answers "holds".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from benchmarks.explore.covering import TABLE
from benchmarks.explore.search import (
    NO_ERROR,
    Breadth,
    NoDeadlock,
    Progress,
    Property,
    Trace,
    View,
    path_to,
    replay_loop,
    starving_loop,
    through,
    trace_of,
)
from benchmarks.explore.system import Label, Network
from partreduce.schedulers.protocols.base import Crashed, Note, Outcome, Received, Send
from partreduce.topo.errors import InputError, RefutedError, UndecidedError


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer for one property: `verdict` is holds, fails or unknown; a failure has a problem and a trace."""

    name: str
    verdict: str
    problem: str = ""
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of a search: one finding per property, and one more if the protocol itself raised an error.

    `complete` says whether every reachable state (inside `within`, if given) was visited. `gaps[i][j]` is the largest
    clock(i) − clock(j) seen, for machines with clocks; only a complete search attains the true maximum.
    """

    findings: tuple[Finding, ...]
    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool
    gaps: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False)

    @property
    def holds(self) -> bool:
        return self.complete and all(finding.verdict == "holds" for finding in self.findings)

    def finding(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def require(self) -> Exploration:
        """Return this exploration; fail unless it is complete and every property holds."""
        for finding in self.findings:
            if finding.verdict == "fails":
                raise RefutedError(f"{finding.name}: {finding.problem}\n{finding.trace}")
        if not self.complete:
            raise UndecidedError(f"explored {self.states} states and stopped at the limit; raise max_states")
        return self

    def __str__(self) -> str:
        """Format one line per property, then the size of the search."""
        lines = []
        for finding in self.findings:
            if finding.verdict == "fails":
                length = len(finding.trace.steps) if finding.trace else 0
                lines.append(f"{finding.name}: fails after {length} steps: {finding.problem}")
            elif finding.verdict == "holds":
                lines.append(f"{finding.name}: holds in {self.states} states")
            else:
                lines.append(f"{finding.name}: unknown, cut at {self.states} states")
        rate = self.states / self.seconds if self.seconds else 0.0
        lines.append(f"{self.states} states, {self.transitions} transitions, depth {self.depth}, {rate:.0f} states/s")
        return "\n".join(lines)


def explore(
    machine: Any,
    *,
    properties: Sequence[Property] = (NoDeadlock(),),
    network: Network | None = None,
    max_states: int = 1_000_000,
    symmetry: bool = True,
    within: Callable[[View], bool] | None = None,
) -> Exploration:
    """Visit every reachable state of a machine and check the properties in each.

    Args:
        machine: the protocol.
        properties: with `symmetry` they must not distinguish symmetric processes.
        network: the adversary; by default messages are delayed arbitrarily and nothing else goes wrong.
        max_states: states to store before giving up (about 250 bytes each).
        symmetry: fold states that differ by one of the machine's `symmetries`; must be off for `Progress`.
        within: visit only states whose processes satisfy this (it sees no messages); "holds" then speaks about these.

    Complexity: time and memory linear in states and transitions; the returned trace to a violation is a shortest one.
    """
    names = [prop.name for prop in properties]
    if len(set(names)) != len(names):
        raise InputError(f"properties: two share a name among {names}")
    liveness = [prop for prop in properties if isinstance(prop, Progress)]
    search = Breadth(
        machine,
        network or Network(),
        properties=properties,
        max_states=max_states,
        symmetry=symmetry and not liveness,
        within=within,
    )
    search.run()
    findings = tuple(_finding(search, prop) for prop in properties)
    if NO_ERROR in search.violations:
        findings = (_failure(search, NO_ERROR), *findings)
    gaps = None if search.gaps is None else tuple(map(tuple, search.gaps.tolist()))
    return Exploration(
        findings, len(search.states), int(search.transitions), search.depth, search.seconds, search.complete, gaps
    )


def _finding(search: Breadth, prop: Property) -> Finding:
    if prop.name in search.violations:
        return _failure(search, prop.name)
    if isinstance(prop, Progress) and not search.violations:
        if not search.complete:
            return Finding(prop.name, "unknown")
        loop = starving_loop(search, prop)
        if loop is not None:
            return _lasso(search, prop.name, loop)
    return Finding(prop.name, "holds" if search.complete else "unknown")


def _failure(search: Breadth, name: str) -> Finding:
    index, problem = search.violations[name]
    labels, states = path_to(search, index)
    return Finding(name, "fails", problem, trace_of(search.system, labels, states))


def _lasso(search: Breadth, name: str, loop: tuple[int, list[Label]]) -> Finding:
    start, cycle = loop
    labels, states = path_to(search, start)
    turn, after = replay_loop(search, states[-1], cycle)
    trace = trace_of(search.system, labels + turn, states + after[1:], loop=len(labels))
    return Finding(name, "fails", "a fair run continues for ever without it", trace)


USUAL = Network()
AT_ONCE = Network(delay=False)
"""For larger systems: a thread that starts later changes the same results as a message that arrives later."""
REORDERED = Network(reorder=True)
WILD = Network(reorder=True, duplicates=1)


@dataclass(frozen=True, slots=True)
class Target:
    """The machine to explore in place of another one, with its properties; `within` is as in `explore`."""

    machine: Any
    properties: tuple[Property, ...]
    within: Callable[[View], bool] | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """A named machine and network; the protocol's `prepare` makes the `Target` from them."""

    name: str
    machine: Any
    prepare: Callable[[Any, Network], Target]
    network: Network = USUAL
    symmetry: bool = False
    max_states: int = 2_000_000

    def of(self, kind: type[Any]) -> Any:
        return kind(**{one.name: getattr(self.machine, one.name) for one in fields(self.machine) if one.init})

    def explored(self, machine: Any = None) -> Target:
        return self.prepare(machine or self.machine, self.network)

    def run(self, machine: Any = None) -> Exploration:
        """Explore with every property; `machine` replaces the configuration's."""
        found = self.explored(machine)
        return explore(
            found.machine,
            properties=found.properties,
            network=self.network,
            symmetry=self.symmetry,
            max_states=self.max_states,
            within=found.within,
        )


def configurations(
    protocol: str, size: str, machine: Callable[[dict[str, Any]], Any], prepare: Callable[[Any, Network], Target]
) -> tuple[Configuration, ...]:
    """Return the rows of a size in the protocol's table as configurations; `machine` makes a row's machine."""
    found = []
    for listed in TABLE[protocol][size]:
        row = dict(listed)
        name, network, symmetry = row.pop("name"), row.pop("network", {}), row.pop("symmetry", False)
        found.append(Configuration(name, machine(row), prepare, Network(**network), symmetry))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Ended:
    """The state of a worker that ended because it suspected another one, or learned that some worker did."""


@dataclass(frozen=True)
class Around:
    """A machine that wraps another one and forwards what it does not define."""

    machine: Any

    def inner(self, state: Any) -> Any:
        """Return the wrapped machine's state, None if it has none."""
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def ready(self, process: int, state: Any) -> Sequence[Hashable]:
        inside = self.inner(state)
        return () if inside is None else tuple(self.machine.ready(process, inside))

    def clock(self, process: int, state: Any) -> int | None:
        """Return the wrapped machine's clock of a process; None without one."""
        inside = self.inner(state)
        has_clock = inside is not None and hasattr(self.machine, "clock")
        return self.machine.clock(process, inside) if has_clock else None

    def shifted(self, process: int, state: Any, by: int) -> Any:
        return state if self.inner(state) is None else self.machine.shifted(process, state, by)

    def shifted_message(self, message: Any, by: int) -> Any:
        return message if isinstance(message, Crashed) else self.machine.shifted_message(message, by)

    def renamed(self, process: int, state: Any, permutation: tuple[int, ...]) -> Any:
        return state if self.inner(state) is None else self.machine.renamed(process, state, permutation)

    def renamed_message(self, message: Any, permutation: tuple[int, ...]) -> Any:
        return message if isinstance(message, Crashed) else self.machine.renamed_message(message, permutation)


class FailStop(Around):
    """A machine in which a worker ends when it suspects that another one is dead."""

    def inner(self, state: Any) -> Any:
        return None if isinstance(state, Ended) else state

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """The machine's channels and their reverses: both ends notice the end of a connection."""
        pairs = set(self.machine.channels)
        return sorted(pairs | {(v, u) for u, v in pairs})

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """The pairs (suspect, observer): workers that are connected."""
        return self.channels

    def step(self, process: int, state: Any, event: object) -> Outcome[Any]:
        """End if a worker is suspected, else do what the machine does."""
        if isinstance(state, Ended):
            return state, ()
        if isinstance(event, Received) and isinstance(event.message, Crashed):
            closed = tuple(Send(v, Crashed()) for u, v in self.channels if u == process)
            return Ended(), (*closed, Note(("missed", event.source)))
        outcome: Outcome[Any] = self.machine.step(process, state, event)
        return outcome

    def finished(self, process: int, state: Any) -> bool:  # noqa: ARG002 - as in Finishing
        """Return whether a worker has ended; the machine's own workers never finish."""
        return isinstance(state, Ended)


def fail_stop(found: Target) -> Target:
    """Return a target whose workers end when they suspect one; its properties are about workers that have not."""
    machine = FailStop(found.machine)
    return Target(machine, tuple(through(prop, machine.inner) for prop in found.properties))
