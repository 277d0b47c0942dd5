"""The kinds of strategy that are run in virtual time, and what all of them come to for a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partreduce.planner.job import Job
from partreduce.planner.option import Option
from partreduce.planner.trials.gaps import Gaps
from partreduce.planner.trials.kit import Kind, Trials
from partreduce.planner.trials.on_request import ON_REQUEST
from partreduce.planner.trials.outer_steps import OuterSteps
from partreduce.planner.trials.quorums import Quorums
from partreduce.schedulers.synthesis.clock import Clock

KINDS: tuple[Kind, ...] = (OuterSteps(), Gaps(), Quorums(), *ON_REQUEST)
"""In the order in which they are tried."""


class Weighed:
    """The kinds that a job weighs, their options, and by kind the names of what the time did not reach."""

    def __init__(self, job: Job) -> None:
        self.job, self.kinds = job, [kind for kind in KINDS if kind.weighs(job)]
        self.left_out: dict[str, list[str]] = {}

    @property
    def share(self) -> float:
        """Of the time, which other stages leave to them."""
        return sum(kind.share for kind in self.kinds)

    def options(self, clock: Clock, until: float, known: Sequence[Option], say: Callable[[str], None]) -> list[Option]:
        """Run all kinds, each until what later ones have to have is left."""
        found: list[Option] = []
        for index, kind in enumerate(self.kinds):
            say(f"running {kind.name} in virtual time")
            later = clock.limit * sum(one.share for one in self.kinds[index + 1 :])
            trials = Trials(self.job, clock, until - later)
            found += kind.options(trials, known)
            self.left_out[kind.name] = trials.left_out
        return found


def reasons(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """What is said of each kind: why it is recommended, or what the best of it would take."""
    return [said for kind in KINDS for said in kind.says(chosen, options, job)]


def cautions(chosen: Option, job: Job) -> list[str]:
    """What the user should know of a recommendation that was run in virtual time."""
    facts = chosen.facts
    return [] if facts is None else next(kind for kind in KINDS if kind.word == facts.kind).cautions(chosen, job)
