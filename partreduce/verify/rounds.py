"""What a run of rounds can rely on: order, ages, queues, its end and equal workers, of fixed rounds and by quorum.

The theorems and the numbers are the checker's (`verify/checker/`). What a round that a quorum starts takes along
is decided while the job runs: theirs are theorems about the protocol, whose object is explored in small systems.
"""

from __future__ import annotations

from collections.abc import Mapping

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, GradientBuckets
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.verify.facts import NONE, If, Numbers, ScheduleFacts, always, fact

END_OF_ROUNDS = (
    " So does the end: if every worker carries out the same number of rounds, whatever its steps_per_round, then also "
    "the last ones complete. That they are as many is assumed: members meet by round number; with unequal data join "
    "mode keeps a worker whose data ended in every round that anybody begins, and without it the others wait for a "
    "worker that ends early."
)
"""What `deadlock-free` assumes about the end of a job, and proves of it."""
SAME_START = " Assumed: the same start, and a deterministic optimizer that is set up alike on all workers."
EXPLORED = " That the protocol's code follows this was explored for small configurations (docs/internals/explorer.md)."


def delays_gradients(schedule: Schedule, _: Numbers) -> bool:
    """Whether gradients come late, in fixed rounds."""
    return schedule.strategy.sync.delays_gradients and schedule.is_mixing


def has_codec(schedule: Schedule, _: Numbers) -> bool:
    """Whether what travels is rounded."""
    return schedule.strategy.transport.codec is not Codec.NONE


DEADLOCK_FREE = fact(
    "deadlock-free",
    (
        If(
            lambda s, _: s.strategy.graphs,
            "In each of the {height} rounds of a period every worker's exchange with its neighbors carries the tick of "
            "the round; all exchanges of smaller ticks are over when one with the smallest is not, so its neighbors "
            "are in the same round, and what they send arrives: no cycle of waiting workers exists, whatever the "
            "graph.",
            "Every {unit} operation of a period carries one tick from 1 to {height}; each worker meets its operations "
            "in strictly increasing ticks, and period q adds q times the largest tick. So the unfinished operation "
            "with the smallest tick always has all its members ready, and no cycle of waiting workers exists.",
        ),
        END_OF_ROUNDS,
        If(
            lambda s, _: s.prologue,
            " The {schedule.prologue} rounds of the prologue are operations of all workers and come before all.",
        ),
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            " Up to {schedule.strategy.sync.lag} of them are in flight at once, begun and waited for in this order, so "
            "the argument stands.",
        ),
        If(
            lambda s, _: s.strategy.transport.gradient_buckets is GradientBuckets.PER_LAYER,
            " Each is cut into pieces that all workers begin in the same order.",
        ),
        If(
            lambda s, _: s.strategy.payload.num_fragments > 1,
            " Each is one after the other of its round's fragments, whose order follows from the step.",
        ),
        If(
            lambda s, _: s.strategy.transport.codec.has_blocks,
            " A thread carries out its stages in this order, on communicators that nothing else uses.",
        ),
    ),
    lambda s, _: {"unit": "group" if s.rule() is None else "block"},
    essential=always,
)


def _why_no_age(facts: ScheduleFacts) -> str:
    if facts.numbers("end").get("behind") == NONE:
        return "somebody never hears of somebody else, on whatever way."
    if facts.schedule.strategy.payload.outer.momentum > 0:
        return "outer momentum may take back what has arrived."
    return "a weight is negative, or a worker gives up all of its own value, so what has arrived may leave again."


STALENESS = fact(
    "staleness",
    (
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            "An average is applied {late} steps after its gradients were taken: it lacks those of the newest {late}",
            If(
                lambda s, _: s.strategy.lacks_newest,
                "An average begins {begins} and lacks the steps behind that place",
                If(
                    lambda _, n: n["late"],
                    "A late average takes the parameters with which its round began: it lacks the newest round of "
                    "every member, at most {steps} steps",
                    "An average takes the parameters of its members after all their steps of the round",
                ),
            ),
        ),
        (
            ". Any {reach} successive rounds lead from everybody to everybody, and what has arrived somewhere stays "
            "there. So at the end of a round everybody's parameters hold all that anybody did up to {age} rounds "
            "before, at most {age_steps} steps of a worker."
        ),
    ),
    lambda _, n: {"begins": "up to a round before its own" if n["late"] > 1 else "inside its round"},
    without=_why_no_age,
)

END = fact(
    "end",
    (
        (
            "The operations of any number of rounds complete if every worker carries out that number. So they do with "
            "data dealt by steps_per_round: a round of all takes {steps} batches, so N batches are N div {steps} "
            "rounds for everybody. So they do in join mode, whatever the data: every worker takes part in exactly the "
            "rounds that anybody began, and leaves when all data have ended."
        ),
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            " The operations in flight then have been begun by all, and complete as the pipeline drains.",
        ),
        If(
            lambda _, n: n["behind"] != NONE,
            " Without either, one that leaves early holds up everybody at most {behind} rounds later.",
        ),
    ),
)

QUEUES = fact(
    "queues",
    (
        If(lambda _, n: n["gap"] != NONE, "No worker is ever more than {gap} rounds ahead of another. "),
        "At most {most} messages wait on an edge",
        If(lambda _, n: NONE in n["capacities"], " that has a bound"),
        ".",
        If(
            lambda _, n: NONE in n["capacities"],
            " {free} of {edges} edges have none: their target never reaches their source.",
        ),
    ),
    lambda _, n: {
        "most": max(n["capacities"], default=0),
        "free": n["capacities"].count(NONE),
        "edges": len(n["capacities"]),
    },
)


def _of_fragments(schedule: Schedule, numbers: Numbers) -> Mapping[str, object]:
    count, every, late, flying = (numbers.get(name, 0) for name in ("fragments", "every", "late", "flying"))
    is_one = schedule.has_one_steps_per_round
    return {
        "every": every if is_one else f"{every} or, of a smaller steps_per_round, fewer",
        "which": f"Each of {count} fragments" if count > 1 else "The model",
        "merged": f"merged {late} steps after it is sent" if late else "merged where it is sent",
        "are": "is" if flying == 1 else "are",
        "kept": schedule.strategy.sync.kept,
    }


FRAGMENTS = fact(
    "fragments",
    (
        If(
            lambda _, n: "period" in n,
            "Each of {fragments} fragments has exactly one turn in every {every} steps, with the groups of its round, "
            "so with all of the period in every {period}; between turns lie at least {apart} steps. A group averages "
            "one fragment after the other, in one order, which follows from the step.",
            (
                (
                    "{which} has exactly one turn in every {every} steps, {merged}; between turns lie at least {apart} "
                    "steps. At most {flying} {are} in flight, and all workers send and merge them in one order, which "
                    "follows from the step. "
                ),
                If(
                    lambda _, n: n["equal"],
                    "It is equal on all workers then",
                    "Workers keep {kept} of their own then",
                ),
                ", and what a worker holds of the others' is at most {age} steps old.",
            ),
        ),
        " The run refuses a model of which a parameter is in no fragment, or in two.",
    ),
    _of_fragments,
)

_BYTES = If(has_codec, " A codec is no exception: all take the decoded bytes, whoever summed them, too.")

EQUAL_REPLICAS = fact(
    "equal-replicas",
    If(
        lambda _, n: n["of"] == "gradients",
        (
            ("All workers hold the same parameters and optimizer state after every step: they start so, and each step "
            "applies the same average of gradients on all, or none."),
            _BYTES,
            SAME_START,
        ),
        (
            "After {which} of the period, which average over all workers, all hold the same parameters: {result}.",
            _BYTES,
            " Between these rounds parameters differ, and optimizer state always may.",
            SAME_START,
        ),
    ),
    lambda s, n: {
        "which": "every round" if len(n.get("rounds", ())) == s.period else f"{len(n.get('rounds', ()))} of {s.period} "
        "rounds",
        "result": f"what {outer} makes of the average" if (outer := s.strategy.payload.outer.in_words) else
        "the average",
    },
    essential=delays_gradients,
)  # fmt: skip

QUORUM = (
    fact(
        "deadlock-free",
        "suppose that no thread moves, no message is on its way, and every training waits for a result, or has ended. "
        "All enter a round that one has entered, so all wait to enter the same round. Each worker that goes on has "
        "come for it, so its quorum is there, and it starts: a contradiction. Where nobody goes on all know which "
        "rounds are needed, and the least of those that are not over starts. A full queue holds nobody up for ever: "
        "its worker takes results when it next calls, which waits for nobody. Assumed: messages arrive, and nobody "
        f"dies.{EXPLORED}",
        essential=always,
    ),
    fact(
        "conservation",
        "a gradient joins its worker's buffer, which a round takes whole and empties when the worker's thread enters "
        "it: so each is in exactly one round, the next that the thread enters. A worker that ends tells everybody "
        "which round has the last of it, the last round of all is the largest of these, and no round beyond it is ever "
        f"entered: so all end at the same round, and nothing is left.{EXPLORED}",
        essential=always,
    ),
    fact(
        "staleness",
        (
            If(
                lambda s, _: isinstance(s.strategy.sync, PartialAllReduce) and s.strategy.sync.keeps_equal,
                "a worker takes no result while it computes, and its thread enters no round while {rounds} wait",
                "models are synchronized every {rounds} rounds, and no thread goes on before its own model is",
            ),
            (
                "; so at most {bound} lie between those that the weights have with which a gradient was computed, and "
                "the round that has the gradient, where synchronous rounds have none: it comes at most {next} rounds "
                f"after the last one that its weights have.{EXPLORED}"
            ),
        ),
        lambda _, n: {"bound": "1 round" if n["rounds"] == 1 else f"{n['rounds']} rounds", "next": n["rounds"] + 1},
        without=lambda _: (
            "nothing holds rounds up for a slow worker, so any number of them may pass while it computes; use missed "
            "each, or synchronize_every."
        ),
    ),
    fact(
        "equal-replicas",
        (
            If(
                lambda _, n: n["of"] == "gradients",
                "the result of a round is the same for all, none is overwritten, and every worker applies each of them "
                "in order: after as many rounds all hold the same parameters and optimizer state. At one instant "
                "workers may have applied different numbers of rounds.",
                "every {every} rounds all take the mean of their parameters. Between these rounds they differ, because "
                "results that a worker is too late for are overwritten, and optimizer state always may.",
            ),
            SAME_START,
            EXPLORED,
        ),
        essential=always,
        without=lambda _: (
            "a result that a worker is too late for is overwritten, and nothing brings parameters together again; use "
            "missed each, or synchronize_every."
        ),
    ),
)
"""Of rounds that a quorum starts, whichever workers come late."""
