"""The kinds of strategy that are run in virtual time, and what all of them come to for a plan."""

from __future__ import annotations

from collections.abc import Sequence

from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.trials.gaps import Gaps
from partreduce.planner.trials.kit import Kind
from partreduce.planner.trials.on_request import ON_REQUEST
from partreduce.planner.trials.outer_steps import OuterSteps
from partreduce.planner.trials.quorums import Quorums

KINDS: tuple[Kind, ...] = (OuterSteps(), Gaps(), Quorums(), *ON_REQUEST)
"""In the order in which they are tried."""


def weighed_kinds(job: PlanRequest) -> list[Kind]:
    """Those that this job weighs; quickly only those that have ever cost a job its best schedule."""
    return [kind for kind in KINDS if (job.searches or kind.is_quick) and kind.weighs(job)]


def sample_distances(job: PlanRequest) -> bool:
    """Whether the consensus distance of a candidate for this job may come from a run."""
    return any(kind.samples_distance for kind in weighed_kinds(job))


def reasons(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """What is said of each kind: why it is recommended, or what the best of it would take."""
    return [said for kind in KINDS for said in kind.says(chosen, options, job)]


def cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    """What the user should know of a recommendation that was run in virtual time."""
    facts = chosen.facts
    return [] if facts is None else next(kind for kind in KINDS if kind.word == facts.kind).cautions(chosen, job)
