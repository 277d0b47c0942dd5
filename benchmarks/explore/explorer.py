"""The explorer: every interleaving of a protocol, for small configurations.

It takes a protocol as a pure state machine (`schedulers.protocols.base.Machine`), lets a network adversary delay, and
if asked reorder, lose and repeat messages or stop processes, and visits every reachable state. For each property the
answer is "holds in N states", the shortest run that breaks it, or "unknown" when a limit cut the search; it never says
"holds" of a search that was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.explore.search.breadth import NO_ERROR, Breadth
from benchmarks.explore.search.liveness import replay_loop, starving_loop
from benchmarks.explore.search.network import Network
from benchmarks.explore.search.properties import NoDeadlock, Pair, PerPair, PerProcess, PerState, Progress, Property
from benchmarks.explore.search.system import Label
from benchmarks.explore.search.trace import Trace, path_to, trace_of
from benchmarks.explore.search.view import View
from partreduce.topo.errors import InputError, RefutedError, UndecidedError

__all__ = [
    "Exploration",
    "Finding",
    "Network",
    "NoDeadlock",
    "Pair",
    "PerPair",
    "PerProcess",
    "PerState",
    "Progress",
    "Property",
    "Trace",
    "View",
    "explore",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer for one property: `verdict` is holds, fails or unknown; a failure has a problem and a trace."""

    name: str
    verdict: str
    problem: str = ""
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found: one finding per property, and one more if the protocol itself raised an error.

    `complete` says whether every reachable state (inside `within`, if given) was visited. `gaps[i][j]` is the largest
    clock(i) − clock(j) seen, for machines with clocks; it is what is attained only if the search is complete.
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
        """Whether the search is complete and every property holds."""
        return self.complete and all(finding.verdict == "holds" for finding in self.findings)

    def finding(self, name: str) -> Finding:
        """The answer for the property of that name."""
        return next(finding for finding in self.findings if finding.name == name)

    def require(self) -> Exploration:
        """This exploration, if it is complete and every property holds.

        Raises:
            RefutedError: a property fails; the message carries the shortest trace.
            UndecidedError: nothing failed, but the search was cut.
        """
        for finding in self.findings:
            if finding.verdict == "fails":
                raise RefutedError(f"{finding.name}: {finding.problem}\n{finding.trace}")
        if not self.complete:
            raise UndecidedError(f"explored {self.states} states and stopped at the limit; raise max_states")
        return self

    def __str__(self) -> str:
        """One line per property, then the size of the search."""
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
    machine: Any,  # noqa: ANN401 - any Machine, of any state type
    *,
    properties: Sequence[Property] = (NoDeadlock(),),
    network: Network | None = None,
    max_states: int = 1_000_000,
    symmetry: bool = True,
    within: Callable[[View], bool] | None = None,
    max_gap: int | None = None,
) -> Exploration:
    """Visit every reachable state of a machine and check the properties in each.

    Args:
        machine: the protocol.
        properties: what must hold; with `symmetry` they must not tell symmetric processes apart.
        network: the adversary; by default messages are delayed at will, nothing else goes wrong.
        max_states: states to store before giving up (about 250 bytes each).
        symmetry: fold states that differ by one of the machine's `symmetries`; off where `Progress` is asked.
        within: keep only states whose processes satisfy this (it sees no messages); states outside are not visited,
            and "holds" then speaks about the states inside.
        max_gap: likewise, keep only states in which no clock is more than this ahead of the slowest.

    Raises:
        InputError: two properties share a name, or `max_gap` for a machine without clocks.

    Complexity: time and memory linear in states and transitions; of all traces to a violation a shortest is returned.
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
        max_gap=max_gap,
    )
    if max_gap is not None and not search.shift:
        raise InputError("max_gap: limits step numbers counted from the slowest process; the machine has none to shift")
    search.run()
    findings = tuple(_finding(search, prop) for prop in properties)
    if NO_ERROR in search.violations:
        findings = (_failure(search, NO_ERROR), *findings)
    gaps = None if search.gaps is None else tuple(map(tuple, search.gaps.tolist()))
    return Exploration(
        findings,
        len(search.states),
        int(search.transitions),
        search.depth,
        search.seconds,
        search.complete,
        gaps,
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
    return Finding(name, "fails", "a fair run goes on for ever without it", trace)
