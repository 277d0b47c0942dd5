"""Prove the guarantees of rounds, fixed or by quorum: order, ages, termination and equal workers.

The checker (`verify/checker/`) states the theorems and computes the numbers. Which gradients a round contains that a
quorum starts is decided at run time: claims about it are theorems on the protocol, which is model-checked for small
systems.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, GradientBuckets
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.verify.facts import NONE, If, Numbers, ScheduleFacts, always, fact

END_OF_ROUNDS = (
    " The last rounds of a job complete too if every worker carries out the same number of rounds, whatever its "
    "steps_per_round. That the numbers are equal is assumed: members meet by round number. With unequal data, join "
    "mode keeps a worker whose data ended in every round that any worker begins; without it the others wait for a "
    "worker that ends early."
)
"""Text of `deadlock-free` about the last rounds of a job, with the assumption that it needs."""
SAME_START = " Assumed: the same start, and a deterministic optimizer with the same settings on all workers."
EXPLORED = " That the protocol's code follows this was explored for small configurations (docs/internals/explorer.md)."


def delays_gradients(schedule: Schedule, _: Numbers) -> bool:
    """Return whether rounds are fixed in advance and gradients are applied some steps after they were computed."""
    return schedule.strategy.sync.delays_gradients and schedule.is_mixing


def has_codec(schedule: Schedule, _: Numbers) -> bool:
    """Return whether the schedule sends its payload with a lossy codec."""
    return schedule.strategy.transport.codec is not Codec.NONE


DEADLOCK_FREE = fact(
    "deadlock-free",
    (
        If(
            lambda s, _: s.strategy.graphs,
            "While an exchange of the earliest unfinished round is not over, its neighbors are in the same round, and "
            "what they send arrives. So no cycle of waiting workers exists, whatever the graph.",
            "Each worker starts its operations in the order of rounds, one a round. So an unfinished operation of the "
            "earliest round always has all its members ready, and no cycle of waiting workers exists.",
        ),
        END_OF_ROUNDS,
        If(
            lambda s, _: s.prologue,
            " The {schedule.prologue} rounds of the prologue are operations of all workers and come first.",
        ),
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            " Up to {schedule.strategy.sync.lag} of them are in flight at once, started and waited for in this order, "
            "so the argument holds.",
        ),
        If(
            lambda s, _: s.strategy.transport.gradient_buckets is GradientBuckets.PER_LAYER,
            " Each is cut into pieces that all workers start in the same order.",
        ),
        If(
            lambda s, _: s.strategy.payload.num_fragments > 1,
            " Each averages the fragments of its round one after another, in an order that follows from the step.",
        ),
        If(
            lambda s, _: s.strategy.transport.codec.has_blocks,
            " One thread carries out its stages in this order, on communicators that nothing else uses.",
        ),
    ),
    essential=always,
)


def _why_no_age(facts: ScheduleFacts) -> str:
    if facts.numbers("end").get("behind") == NONE:
        return "unbounded: some worker never receives from some other, not even through others."
    if facts.schedule.strategy.payload.outer.momentum > 0:
        return "outer momentum may reverse an update that has arrived."
    return (
        "a weight is negative, or a worker keeps no weight on itself, so an update that has arrived may be lost again."
    )


STALENESS = fact(
    "staleness",
    (
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            "An average is applied {late} steps after its gradients were computed: it lacks those of the newest {late}",
            If(
                lambda s, _: s.strategy.lacks_newest,
                "An average begins {begins} and lacks all later steps",
                If(
                    lambda _, n: n["late"],
                    "A late average takes the parameters with which its round began: it lacks the newest round of "
                    "every member, at most {steps} steps",
                    "An average takes the parameters of its members after all their steps of the round",
                ),
            ),
        ),
        (
            ". In any {reach} successive rounds every worker's updates reach every other worker, and they stay there. "
            "So at the end of a round each worker's parameters contain all updates of all workers up to {age} rounds "
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
            "The operations of any number of rounds complete if every worker carries out that number. Data divided by "
            "steps_per_round gives this: a round of all workers takes {steps} batches, so N batches are N div {steps} "
            "rounds for every worker. Join mode gives it for any data: every worker takes part in exactly the rounds "
            "that any worker began, and leaves when all data have ended."
        ),
        If(
            lambda s, _: s.strategy.sync.delays_gradients,
            " The operations in flight at the end were started by all, and complete as the pipeline drains.",
        ),
        If(
            lambda _, n: n["behind"] != NONE,
            " Without either, a worker that leaves early blocks all others at most {behind} rounds later.",
        ),
    ),
)

FRAGMENTS = fact(
    "fragments",
    (
        If(lambda _, n: n["fragments"] > 1 or "period" in n, "Each of {fragments} fragments", "The model"),
        " has exactly one turn in every {every}",
        If(lambda s, _: not s.has_one_steps_per_round, " or, of a smaller steps_per_round, fewer"),
        " steps, ",
        If(
            lambda _, n: "period" in n,
            "with the groups of its round, so with all of the period in every {period}; between turns lie at least "
            "{apart} steps. A group averages one fragment after another, in an order that follows from the step.",
            (
                If(lambda _, n: n["late"], "merged {late} steps after it is sent", "merged where it is sent"),
                "; between turns lie at least {apart} steps. At most {flying} ",
                If(lambda _, n: n["flying"] == 1, "is", "are"),
                " in flight, and all workers send and merge them in one order, which follows from the step. ",
                If(
                    lambda _, n: n["equal"],
                    "It is equal on all workers then",
                    "Workers keep {schedule.strategy.sync.kept} of their own then",
                ),
                ", and what a worker holds of the others is at most {age} steps old.",
            ),
        ),
        " The runtime refuses a model with a parameter in no fragment or in two.",
    ),
)

_BYTES = If(
    has_codec, " This holds with a codec too: all workers, also those that computed a sum, use the decoded bytes."
)

EQUAL_REPLICAS = fact(
    "equal-replicas",
    If(
        lambda _, n: n["of"] == "gradients",
        (
            (
                "All workers hold the same parameters and optimizer state after every step: they start equal, and each "
                "step applies the same average of gradients on all, or on none."
            ),
            _BYTES,
            SAME_START,
        ),
        (
            "After ",
            If(lambda s, n: len(n["rounds"]) == s.period, "every round", "{count} of {schedule.period} rounds"),
            " of the period, which average over all workers, all hold the same parameters: ",
            If(
                lambda s, _: s.strategy.payload.outer.in_words,
                "what {schedule.strategy.payload.outer.in_words} makes of the average",
                "the average",
            ),
            ".",
            _BYTES,
            " Between these rounds parameters differ; optimizer state may always differ.",
            SAME_START,
        ),
    ),
    lambda _, n: {"count": len(n.get("rounds", ()))},
    essential=delays_gradients,
)

QUORUM = (
    fact(
        "deadlock-free",
        "Suppose that no thread moves, no message is in transit, and every worker waits for a result or has ended. "
        "All workers enter a round that one has entered, so all wait to enter the same round. If some still train, "
        "each of them has arrived at that round, so its quorum is complete and it starts: a contradiction. If none "
        "still trains, all know which rounds are needed, and the first unfinished one starts. A full queue blocks no "
        "worker for ever: the worker takes results at its next call, which waits for no other. Assumed: messages "
        f"arrive, and no worker fails.{EXPLORED}",
        essential=always,
    ),
    fact(
        "conservation",
        "A gradient is added to its worker's buffer. A round takes the whole buffer when the worker's thread enters "
        "it, so each gradient is in exactly one round, the next that the thread enters. A worker that ends announces "
        "the round with its last gradient. The last round is the largest of these and no later one is entered, so "
        f"all workers end at the same round and no gradient is left.{EXPLORED}",
        essential=always,
    ),
    fact(
        "staleness",
        (
            If(
                lambda s, _: isinstance(s.strategy.sync, PartialAllReduce) and s.strategy.sync.keeps_equal,
                "A worker takes no result while it computes, and its thread enters no round while {rounds} results "
                "wait",
                "Models are synchronized every {rounds} rounds, and no thread continues before its own model is",
            ),
            (
                ". So at most {bound} (0 in synchronous rounds) lie between the last round in the weights with which a "
                "gradient was computed and the round that averages it, which comes at most {next} rounds after the "
                f"former.{EXPLORED}"
            ),
        ),
        lambda _, n: {"bound": "1 round" if n["rounds"] == 1 else f"{n['rounds']} rounds", "next": n["rounds"] + 1},
        without=lambda _: (
            "unbounded: rounds do not wait for a slow worker, so any number may pass while it computes; use missed "
            "each, or synchronize_every."
        ),
    ),
    fact(
        "equal-replicas",
        (
            If(
                lambda _, n: n["of"] == "gradients",
                "The result of a round is the same on all workers, none is overwritten, and every worker applies them "
                "in order: after the same number of rounds all hold the same parameters and optimizer state. At one "
                "instant workers may have applied different numbers of rounds.",
                "Every {every} rounds all workers take the mean of their parameters. Between these rounds they differ, "
                "because results that a worker misses are overwritten; optimizer state may always differ.",
            ),
            SAME_START,
            EXPLORED,
        ),
        essential=always,
        without=lambda _: (
            "a result that a worker misses is overwritten, and nothing brings the parameters together again; use "
            "missed each, or synchronize_every."
        ),
    ),
)
"""Statements on rounds that a quorum of the workers starts, whichever workers are late."""
