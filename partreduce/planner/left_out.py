"""What an answer leaves out, so that nobody takes it for weighed: for want of time, for its size, or for memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partreduce.planner.answer import Answer
from partreduce.planner.competitors import MAX_GRAPH_WORKERS
from partreduce.planner.job import PlanRequest
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.trials import on_request, outer_steps
from partreduce.schedulers.synthesis.cluster_shape import has_equal_speeds, holds_rules


def not_reached(missed: Mapping[str, Sequence[str]], answer: Answer) -> list[str]:
    """What was left unscored, with how many of what each is part of, and whether another run may differ: a sentence."""
    count = sum(map(len, missed.values()))
    if not count and not answer.capped:
        return []
    kinds = ", ".join(f"{len(names)} of {what}" for what, names in missed.items() if names)
    left = f" with {count} schedule{'s' * (count != 1)} unscored ({kinds})" if count else ""
    differs = ", and another run may differ" if answer.capped else ""
    return [
        f"planning ended because {answer.ended}{left}{differs}; raise --{'time-limit' if answer.capped else 'effort'}"
    ]


def not_weighed(job: PlanRequest) -> list[str]:
    """What is no candidate, though nobody asked for something else, and why; O(num_workers) where steps vary."""
    said, count = [], job.cluster.num_workers
    if job.cluster.is_regular and not holds_rules(job.cluster):
        said.append(
            f"no rules are searched for {job.cluster.workers_per_node} workers on a node, whose matrices would not fit "
            "into memory; the catalogue's rules are weighed as far as there is time"
        )
    if count > MAX_GRAPH_WORKERS and (kinds := _of_fewer(job)):
        way_out = "; --sync partial weighs quorums" if "quorums" in kinds else ""
        listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
        said.append(f"{listed} are weighed for at most {MAX_GRAPH_WORKERS} workers, not {count}{way_out}")
    if not on_request.is_open(job):
        return said
    slowdown = Slowdown.of(job)
    if slow := slowdown.slow:
        them = ", ".join(str(worker) for worker, _ in slow[:4]) + ", …" * (len(slow) > 4)
        said.append(
            f"two answers are yours to weigh: leave worker{'s' * (len(slow) > 1)} {them} out, or give a smaller batch "
            "(docs/how-to/slow-worker.md)"
        )
    what, most = "groups on request, pairs and servers are", on_request.MOST_WORKERS
    if slowdown.is_even:
        said.append(
            f"{what} not weighed: no worker is slow and no step takes longer than others, which is what they answer"
        )
    elif count > most:
        said.append(f"{what} weighed for at most {most} workers, not {count}")
    if (why := outer_steps.why_not_weighed(job)) and outer_steps.is_thin(job):
        said.append(f"outer steps (DiLoCo) are not weighed: {why}; --build diloco builds them")
    return said


def _of_fewer(job: PlanRequest) -> list[str]:
    """Kinds of candidates that this job would have if it had fewer workers."""
    if job.quorum:
        return []
    kinds = ["weighted graphs"]
    if not has_equal_speeds(job.cluster):
        kinds.append("unequal steps per round")
    others = ["neighbors that keep a gap"] * (job.gap is None and not job.tables) + ["quorums"] * job.is_open_to_quorums
    return kinds if not others or Slowdown.of(job).is_even else kinds + others
