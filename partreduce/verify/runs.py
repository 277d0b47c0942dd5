"""What a run of fixed rounds can rely on, in words: order, ages, queues, its end, equal workers, memory, bytes.

The theorems and the numbers are the checker's (`verify/checker/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import WIDER, Codec, DrainPolicy, Pipeline
from partreduce.topo.strategies.base import Averaging
from partreduce.verify.base import Claim, not_proved, upper
from partreduce.verify.codec_error import codec_error
from partreduce.verify.stated import Numbers, Stated
from partreduce.verify.view import rule_view

NONE = -1
"""There is no bound."""

END = (
    " So does the end: if every worker carries out the same number of rounds, whatever its steps_per_round, then also "
    "the last ones complete. That they are as many is assumed: members meet by round number; with unequal data join "
    "mode keeps a worker whose data ended in every round that anybody begins, and without it the others wait for a "
    "worker that ends early."
)
"""What `deadlock-free` assumes about the end of a job, and proves of it."""

SENT = ("of_worker", "of_node", "in_flight")

ASSUMED = "Assumed: the same start, and a deterministic optimizer that is set up alike on all workers."
BYTES = " A codec is no exception: all take the decoded bytes, whoever summed them, too."


def claims_of_runs(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All but `deadlock-free`, which stands among the claims about groups."""
    claims = (
        *ages(schedule, stated),
        stated.claim("queues", _queues),
        lag(schedule, stated),
        fragments(schedule, stated),
        equal_replicas(schedule, stated),
        codec_error(schedule, stated),
        memory(schedule, stated),
        sent_bytes(schedule, stated),
    )
    return tuple(claim for claim in claims if claim is not None)


def deadlock_free(schedule: Schedule, stated: Stated) -> Claim | None:
    """One tick for each operation, which grow along each worker."""

    def words(numbers: Numbers) -> str:
        if schedule.strategy.graphs:
            return (
                f"In each of the {numbers['height']} rounds of a period every worker's exchange with its neighbors "
                "carries the tick of the round; all exchanges of smaller ticks are over when one with the smallest is "
                "not, so its neighbors are in the same round, and what they send arrives: no cycle of waiting workers "
                "exists, whatever the graph." + END
            )
        unit = "group" if rule_view(schedule) is None else "block"
        text = (
            f"Every {unit} operation of a period carries one tick from 1 to {numbers['height']}; each worker meets its "
            "operations in strictly increasing ticks, and period q adds q times the largest tick. So the unfinished "
            "operation with the smallest tick always has all its members ready, and no cycle of waiting workers "
            f"exists.{END}"
        )
        if schedule.prologue:
            text += (
                f" The {schedule.prologue} rounds of the prologue are operations of all workers and come before all."
            )
        return text

    return stated.claim("deadlock-free", words)


def ages(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """`staleness` and `end`, which rest on the rounds after which everybody has met everybody."""
    end = stated.claim("end", lambda numbers: _end(schedule, numbers))
    why = "a weight is negative, or a worker gives up all of its own value, so what has arrived may leave again."
    if schedule.strategy.payload.outer.momentum > 0:
        why = "outer momentum may take back what has arrived."
    if end is not None and (end.numbers or {}).get("behind") == NONE:
        why = "somebody never hears of somebody else, on whatever way."
    age = stated.claim("staleness", lambda numbers: _staleness(schedule, numbers)) or not_proved("staleness", why)
    return (age,) if end is None else (age, end)


def _staleness(schedule: Schedule, numbers: Numbers) -> str:
    strategy, late = schedule.strategy, numbers["late"]
    direct = "An average takes the parameters of its members after all their steps of the round"
    if strategy.sync.delays_gradients:
        direct = (
            f"An average is applied {late} steps after its gradients were taken: it lacks those of the newest {late}"
        )
    elif strategy.lacks_newest:
        direct = (
            f"An average begins {'up to a round before its own' if late > 1 else 'inside its round'} and lacks the "
            "steps behind that place"
        )
    elif late:
        direct = (
            "A late average takes the parameters with which its round began: it lacks the newest round of every "
            f"member, at most {numbers['steps']} steps"
        )
    return (
        f"{direct}. Any {numbers['reach']} successive rounds lead from everybody to everybody, and what has arrived "
        "somewhere stays there. So at the end of a round everybody's parameters hold all that anybody did up to "
        f"{numbers['age']} rounds before, at most {numbers['age_steps']} steps of a worker."
    )


def _end(schedule: Schedule, numbers: Numbers) -> str:
    text = (
        "The operations of any number of rounds complete if every worker carries out that number. So they do with data "
        f"dealt by steps_per_round: a round of all takes {numbers['steps']} batches, so N batches are N div "
        f"{numbers['steps']} rounds for everybody. So they do in join mode, whatever the data: every worker takes part "
        "in exactly the rounds that anybody began, and leaves when all data have ended."
    )
    if schedule.strategy.sync.delays_gradients:
        text += " The operations in flight then have been begun by all, and complete as the pipeline drains."
    if numbers["behind"] != NONE:
        text += f" Without either, one that leaves early holds up everybody at most {numbers['behind']} rounds later."
    return text


def _queues(numbers: Numbers) -> str:
    capacities, reach = numbers["capacities"], numbers["gap"]
    free = capacities.count(NONE)
    text = "" if reach == NONE else f"No worker is ever more than {reach} rounds ahead of another. "
    text += f"At most {max(capacities, default=0)} messages wait on an edge{' that has a bound' if free else ''}."
    if free:
        text += f" {free} of {len(capacities)} edges have none: their target never reaches their source."
    return text


def lag(schedule: Schedule, stated: Stated) -> Claim | None:
    """How old the gradients are that a pipeline applies, which steps apply none, how many are in flight."""
    sync = schedule.strategy.sync
    if not isinstance(sync, Pipeline):
        return None
    late = sync.lag
    before, last = ("1 step", "the last step") if late == 1 else (f"{late} steps", f"the last {late} steps")
    first = "the first one applies" if late == 1 else f"the first {late} apply"
    each = f"After {sync.warm_up} synchronous steps each" if sync.warm_up else "Each"
    least = f"T >= {sync.warm_up + late}"
    text = (
        f"{each} step applies the {sync.total} of all workers' gradients of exactly {before} before; {first} a "
        f"gradient of 0. Never more than {late} of these operations {'is' if late == 1 else 'are'} in flight. "
    )
    if sync.drain is DrainPolicy.DROP:
        text += (
            f"Those of {last} are dropped at the end: {least} steps apply T - {late} gradients, each once and in order."
        )
    else:
        text += (
            f"Those of {last} are applied at the end{', one after the other' * (late > 1)}: {least} steps apply all "
            f"T gradients, each once and in order, in T + {late} updates."
        )
    if late > 1 or sync.warm_up:
        text += " A shorter run leaves only those in flight that it took behind the warm-up."
    if sync.width <= 2:
        return stated.claim("lag", text)
    text += f" A width of {sync.width} was asked for, although {WIDER}."
    return stated.claim("lag", text, {"width": sync.width, "against": WIDER})


def fragments(schedule: Schedule, stated: Stated) -> Claim | None:
    """When each part of the model is averaged, in which order, and how old it gets."""

    def words(numbers: Numbers) -> str:
        count, every, apart, late = (numbers[name] for name in ("fragments", "every", "apart", "late"))
        if not schedule.has_one_steps_per_round:
            every = f"{every} or, of a smaller steps_per_round, fewer"
        refused = "The run refuses a model of which a parameter is in no fragment, or in two."
        if "period" in numbers:
            return (
                f"Each of {count} fragments has exactly one turn in every {every} steps, with the groups of its round, "
                f"so with all of the period in every {numbers['period']}; between turns lie at least {apart} steps. A "
                "group averages one fragment after the other, in one order, which follows from the step. " + refused
            )
        which = f"Each of {count} fragments" if count > 1 else "The model"
        merged = f"merged {late} steps after it is sent" if late else "merged where it is sent"
        kept = schedule.strategy.sync.kept
        equal = "It is equal on all workers then" if numbers["equal"] else f"Workers keep {kept} of their own then"
        return (
            f"{which} has exactly one turn in every {every} steps, {merged}; between turns lie at least {apart} steps. "
            f"At most {numbers['flying']} {'is' if numbers['flying'] == 1 else 'are'} in flight, and all workers send "
            f"and merge them in one order, which follows from the step. {equal}, and what a worker holds of the "
            f"others' is at most {numbers['age']} steps old. {refused}"
        )

    return stated.claim("fragments", words)


def equal_replicas(schedule: Schedule, stated: Stated) -> Claim | None:
    """After which rounds all workers hold the same parameters, bit for bit."""
    outer = schedule.strategy.payload.outer.in_words
    result = f"what {outer} makes of the average" if outer else "the average"
    bytes_ = "" if schedule.strategy.transport.codec is Codec.NONE else BYTES

    def words(numbers: Numbers) -> str:
        if numbers["of"] == "gradients":
            return (
                "All workers hold the same parameters and optimizer state after every step: they start so, and each "
                f"step applies the same average of gradients on all, or none.{bytes_} {ASSUMED}"
            )
        count = len(numbers["rounds"])
        which = "every round" if count == schedule.period else f"{count} of {schedule.period} rounds"
        return (
            f"After {which} of the period, which average over all workers, all hold the same parameters: {result}."
            f"{bytes_} Between these rounds parameters differ, and optimizer state always may. {ASSUMED}"
        )

    return stated.claim("equal-replicas", words)


def memory(schedule: Schedule, stated: Stated) -> Claim | None:
    """Distinct groups and connections of the busiest worker, splits, and arrays besides the parameters."""
    strategy, codec = schedule.strategy, schedule.strategy.transport.codec
    has_reference = (codec is not Codec.NONE or not strategy.payload.outer.is_plain) and not strategy.averages_gradients
    coded = "coded " if codec is not Codec.NONE else ""
    sums = strategy.sync.lag + 1 if strategy.sync.delays_gradients else 1
    besides = (
        (
            strategy.mixes_late or strategy.averaging is Averaging.STEP_NORMALIZED,
            "one for the parameters with which a round began",
        ),
        (has_reference, f"one for the reference from which {coded}differences are taken"),
        (strategy.payload.outer.momentum > 0, "one for the momentum of outer steps"),
        (2 * strategy.transport.error_feedback, "at most two for what error feedback keeps"),
    )

    def words(numbers: Numbers) -> str:
        arrays, splits = numbers["arrays"], numbers["splits"]
        if strategy.graphs:
            what = f"exchanges with at most {numbers['connections']} others"
            sources = arrays - 1 - sum(count for count, _ in besides)
            kept = [f"one for the sums and {sources} for what its neighbors send"]
        else:
            second = f" ({codec} has a second communicator for each that goes as a ring)" if codec.has_blocks else ""
            what = (
                f"is in at most {numbers['groups']} distinct groups{second}, with {numbers['connections']} other "
                "members together"
            )
            kept = ["one for the sums" if sums == 1 else f"{sums} for the sums in flight and the one that is applied"]
        kept += [told for count, told in besides if count]
        return (
            f"A worker {what}; {splits} different rounds of the period exchange anything. Beside its parameters it "
            f"keeps at most {arrays} arrays of their size ({', and '.join(kept)}), so {arrays} scratch bytes for each "
            "byte of parameters."
        )

    return stated.claim("memory", words)


def sent_bytes(schedule: Schedule, stated: Stated) -> Claim | None:
    """What one step sends and which operations are in flight, for each byte of what an operation averages."""

    def words(numbers: Numbers) -> str:
        whole = "gradients" if schedule.strategy.averages_gradients else "the model"
        what, turn = ("the largest fragment", "turn") if numbers["parts"] > 1 else (whole, "round")
        of_worker, of_node, in_flight = (upper(Fraction(numbers[name])) for name in SENT)
        return (
            f"For each byte of {what} at most {of_worker} bytes leave a worker and {of_node} a node in one "
            f"{turn}, of which a step begins at most one. Operations on at most {in_flight} bytes are in flight at a "
            "time; each counts once, to however many workers it sends. What rounding up to whole numbers and blocks "
            "adds is not counted, and sums go around one ring in the order of ranks."
        )

    return stated.claim("sent-bytes", words)


def in_bytes(numbers: Mapping[str, Any], model_bytes: int) -> dict[str, int]:
    """The numbers of `sent-bytes` in bytes, rounded up, for a model of this size that is cut into equal fragments."""
    return {name: ceil(Fraction(numbers[name]) * model_bytes / numbers["parts"]) for name in SENT}
