"""Facts of rounds, by the rules that a program obeys: one function for each fact, with its theorem and its numbers.

Let a worker *meet* another in a round if a group that contains both averages then (relaxation not 0), or if it receives
from the other over an edge (weight not 0). A value of worker i before round t has *reached* i itself at first and then,
round by round, every worker that meets a reached worker. R, `rounds_to_meet`, is the smallest number such that in any R
successive rounds the value of any worker reaches all workers.

**No worker is more than R rounds ahead.** Let worker i be in round r: it has not begun to exchange in round r + 1. An
exchange completes only when all workers that one meets have begun it. So a worker that meets i in round r + 1 cannot
leave that round, a worker that meets one of those in round r + 2 cannot leave that one, and after R rounds all are
blocked, in round r + R at most. For a graph of one round R is its diameter, Hop's bound. Late averages begin with their
round, and a round is not left before they are complete, so they change nothing. A pipeline of gradients with the lag d
leaves round s when the average of round s − d is complete: no worker is more than R + d rounds ahead.

**No worker waits for ever** (`deadlock-free`): every operation completes at any speeds of the workers. *Theorem.* Let
the tick of a group's operation be the number of its round. It is the same at all members, and ascends along each
worker's list of operations, as groups of a round are disjoint. Of all unfinished operations take one with the smallest
tick: those that its members issue before it have smaller ticks, so they are finished, and all members are ready for it.
In weighted graphs an operation is one worker's exchange with its neighbors, whatever the edges: all workers have
finished the rounds before, so its neighbors enter the same round, and their messages to one another arrive.

A worker may issue operations before earlier ones are finished (a pipeline has up to `lag` in flight), cut one into
several (layers of a gradient, buckets of a model, stages of a sum), and hand some to a thread that carries them out in
order on separate communicators. *The theorem still holds* if no worker waits for an operation before it was issued, and
all members issue in the same order: let the ticks be the places in the order of issue. Of the operation with the
smallest unfinished tick, all operations for which a member waits before it, in either thread, are finished, and later
ones are on other communicators or wait behind it.

*Assumed of the program:* each worker issues the operations of its rounds in order (late averages too), members meet by
round number (so steps per round do not matter), all cut and number those of a round in the same way, and all carry out
the same number of rounds, so that every operation has all its members.

**Everything arrives after R rounds** if no worker gives up all of its own value: a reached worker stays reached.

**Rules.** Start at local rank l of a node x. The nodes that are reached at a local rank are a union of sets "all nodes
that agree with x outside the digits F", so a family of sets F describes them: an average over the local ranks L across
the digits D replaces the families of L by their union with D added to each member. A union of proper sets contains no
node that differs from x in every digit, so all nodes are reached iff F = all digits is in the family. Neither x nor the
radices matter: R is the same for every number of nodes with so many digits.
"""

from __future__ import annotations

from .refusal import Work
from .schedule import PLAIN, Numbers, Schedule, keeps_something

NONE = -1
"""The value of a bound that does not exist."""


def rounds_to_meet(schedule: Schedule, work: Work) -> int | None:
    """Return the rounds after which, from any round on, every worker's value has reached all workers; None if never."""
    found, after, phases = 0, _of_rule if schedule.form == "rule" else _of_workers, schedule.phases
    for start in range(schedule.period):
        # A second average in the same groups reaches no other worker, so starts there need one round fewer.
        if start and phases and phases[start] == phases[start - 1]:
            continue
        rounds = after(schedule, start, work)
        if rounds is None:
            return None
        found = max(found, rounds)
    return found


def _of_workers(schedule: Schedule, start: int, work: Work) -> int | None:
    """Return the number of rounds from `start` on until every worker's value has reached all workers; None if never."""
    n, period = schedule.num_workers, schedule.period
    work.spend(n * (n // 8 + 40))  # before the first list is made
    arrived = [1 << worker for worker in range(n)]
    meetings: list[list[tuple[list[int], list[int]]]] = [
        [(list(members), list(members)) for members, _, relaxation in phase if relaxation] for phase in schedule.phases
    ]
    for edges in schedule.rounds:
        sources: dict[int, list[int]] = {}
        for target, source, weight in edges:
            if weight:
                sources.setdefault(target, [target]).append(source)
        meetings.append([([target], senders) for target, senders in sources.items()])
    number = quiet = 0
    while any(bits.bit_count() < n for bits in arrived):
        before, arrived = arrived, list(arrived)
        for targets, senders in meetings[(start + number) % period]:
            work.spend((len(senders) + len(targets)) * (40 + n // 64))
            together = 0
            for source in senders:
                together |= before[source]
            for target in targets:
                arrived[target] = together
        number, quiet = number + 1, quiet + 1 if arrived == before else 0
        work.spend(n * 10)
        if quiet >= period:
            return None
    return number


def _of_rule(schedule: Schedule, start: int, work: Work) -> int | None:
    size, period = schedule.width, schedule.period
    work.spend(size * size * 10)
    phases = [
        [(members, sum(1 << digit for digit in across)) for members, across, relaxation in phase if relaxation]
        for phase in schedule.phases
    ]
    full = (1 << len(schedule.radices)) - 1
    slowest = 0
    # Two local ranks that share all their blocks can change places, so that both reach all others equally fast.
    blocks: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for t, phase in enumerate(phases):
        for index, (members, _) in enumerate(phase):
            work.spend(10 * len(members))
            for member in members:
                blocks[member].append((t, index))
    same = {tuple(shared): rank for rank, shared in enumerate(blocks)}
    for rank in same.values():
        families: list[set[int]] = [{0} if other == rank else set() for other in range(size)]  # digits as bits
        number = quiet = 0
        while not all(full in family for family in families):
            changed = False
            for members, across in phases[(start + number) % period]:
                together = {digits | across for member in members for digits in families[member]}
                work.spend(100 + len(members) * 10 + len(together) ** 2)
                together = {one for one in together if not any(one & other == one != other for other in together)}
                for member in members:
                    changed |= families[member] != together
                    families[member] = together
            number, quiet = number + 1, 0 if changed else quiet + 1
            work.spend(size * 10)
            if quiet >= period:
                return None
        slowest = max(slowest, number)
    return slowest


def end(schedule: Schedule, work: Work) -> Numbers:
    """Fact `end`, by the rules of rounds: all workers end after the same round; none waits for a worker that left.

    *Theorem 1.* If every worker carries out the rounds 0 … m − 1, for any m, all their operations complete: each has
    all its members, and the argument of `deadlock-free` never looks beyond the operation with the smallest tick.

    *Theorem 2, data dealt by steps_per_round.* A round of all workers takes `steps` batches, of which worker i takes
    its steps_per_round. So N batches are N div `steps` rounds for all workers at any speeds; the rest is left out.

    *Theorem 3, unequal data in join mode.* A worker with data for a round declares the round before it begins; one
    whose data ended announces this once, declares no more rounds, takes part in every declared round, and leaves when
    the data of all have ended and a later query shows that the next round is not declared. A worker takes rounds in
    order, so the declared rounds are 0 … m − 1. A worker that leaves before round k has seen that no worker can declare
    k any more: k = m. And none leaves later, because round m is never begun. So every worker carries out exactly the
    rounds 0 … m − 1.

    *Theorem 4, unequal data without join mode.* A worker that leaves after its round r blocks all others at most
    `behind` rounds later (R, and R + lag in a pipeline of gradients), so unequal data cannot go unnoticed for longer.
    −1 where some workers never meet.

    *A pipeline* ends with operations in flight: all workers have begun each of them, so they complete as it drains.

    *Assumed of the program:* what `deadlock-free` assumes, and of join mode that later queries of all workers see what
    a worker announced.
    Returns `steps` (batches of all workers in a round) and `behind` (rounds).
    """
    worker_steps = schedule.worker_steps
    steps = worker_steps[0] * schedule.num_workers if len(worker_steps) == 1 else sum(worker_steps)
    reach = rounds_to_meet(schedule, work)
    ahead = schedule.lag if schedule.pipeline else 0
    return {"steps": steps, "behind": NONE if reach is None else reach + ahead}


def staleness(schedule: Schedule, work: Work) -> Numbers | None:
    """Fact `staleness`, by the rules of rounds: the largest age of an averaged value, in rounds and in steps.

    *Directly.* A synchronous average has all steps of its round. A late one is of the parameters with which the round
    began: it lacks the newest `late` = 1 rounds of its worker, at most `steps` steps. So does one that begins inside
    its round, of fragments in turn or some steps before the end; one that begins before its round, as fragments do that
    are late by more steps than lie before the first turn, lacks steps of two: there `late` is 2. A pipeline averages
    gradients taken `late` steps before.

    *Through others.* *Theorem:* every step of a worker up to the end of round r − `age` is in the parameters of all
    workers at the end of their round r, with a positive weight. *Proof:* let any R = `reach` successive rounds lead
    from every worker to every worker. With no weight negative and a positive self-weight, a value that has arrived at a
    worker stays there and is passed on at every meeting. Synchronously the steps of round k enter the average of round
    k and have arrived at all workers R − 1 rounds later; a late average includes them `late` rounds later: `age` = R −
    1 + `late`. (In a pipeline R = 1, and the step k of a worker is its gradient of that step.) In steps these are at
    most `age_steps`, `age` times the largest steps_per_round.

    *Outer steps.* With outer parameters of each worker's own, and no outer momentum, a group of s members with the
    outer rate r gives a member's outer parameters the weight 1 − r + r/s, and those of each other member r/s: an
    average with relaxation r. Shared outer parameters add r > 0 times the progress of all workers since the last round
    of all, and lose none of it. If workers keep a share α = 1 − relaxation of their own values there, the sum of the
    outer steps so far arrives: without momentum r·(1 + q + q² + …), q = α·(1 − r), positive for |q| < 1, which the
    reader requires of each α, one or several in turn. With an outer momentum there is no statement in either case.

    The fact is stated if the weights are as supposed, those of the prologue too, and all workers meet. A round of the
    prologue averages over all workers, so it increases none of the numbers.
    Returns `late`, `reach` and `age` (rounds), and `steps` and `age_steps` (steps).
    """
    outer = schedule.outer
    rate = outer.lr if outer.has_own_outer_params else 1
    prologue = {(schedule.num_workers, PLAIN)} if schedule.prologue else set()
    sizes = prologue.union(*schedule.group_sizes())
    keeps_own = all(relaxation >= 0 and rate * relaxation * (size - 1) < size for size, relaxation in sizes)
    is_left = any(relaxation != 1 for relaxation in schedule.averages_of_all.values())
    takes_back = outer.momentum > 0 and (outer.has_own_outer_params or is_left)
    if takes_back or not (keeps_own and all(map(keeps_something, schedule.rounds))):
        return None
    reach = rounds_to_meet(schedule, work)
    if reach is None:
        return None
    steps_per_round = max(schedule.worker_steps)
    begins_before = schedule.late_steps > steps_per_round // schedule.num_fragments
    late = schedule.lag + int(fragments(schedule, work) is not None) + int(begins_before)
    age = reach - 1 + late
    return {
        "late": late,
        "steps": late * steps_per_round,
        "reach": reach,
        "age": age,
        "age_steps": age * steps_per_round,
    }


def fragments(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `fragments`, by the rules of turns: when each fragment of the model is averaged, and its largest age.

    The model is cut into P fragments, every parameter in one. Of every H = steps_per_round steps fragment p = 0 … P − 1
    has its turn after e_p = ⌊(p + 1)·H / P⌋: its values on all workers after e_p − τ steps are summed, and after e_p
    steps it is merged: x ← α·x + (1 − α)·g, where g is the result of an outer step with the mean. If e_p ≤ τ it is sent
    τ − e_p steps before its round begins, and has no turn in the first round. A worker that sends and merges after the
    same step merges first, unless τ is 0. A model that is merged τ steps late is one fragment.

    *Theorem*, for P ≤ H and τ < H, which every schedule that can be read obeys. (a) Every fragment has exactly one turn
    in each round of H steps, at the same place of it. (b) All workers send fragments in one order, at most one a step,
    and merge them in the same order, each before it is sent again. At most `flying` = ⌈τ·P / H⌉ are in flight at any
    time, and one where τ is 0. (c) Between two turns lie at least `apart` = ⌊H / P⌋ steps. (d) The values of other
    workers in a worker's fragment are at most `age` = H + τ steps old. (e) Where α is 0 a fragment is equal on all
    workers after its turn (`equal`).

    Where steps per round differ (τ and α are 0 then) all this holds with each worker's own H: each has the turns 0 … P
    − 1 in this order. `every` and `age` are of the largest H, `apart` of the least. (d) and (e) are of sums over all
    workers. Where rounds have groups (τ and α are 0) a fragment's turn in round k is an operation of the groups of
    round k, so it meets all T groups of the period in `period` = H·T steps, and each fragment alone is averaged as a
    whole model is, a part of a round earlier.

    *Proof.* As H / P ≥ 1, e_p ascends from ⌊H / P⌋ by ⌊H / P⌋ or one more to e_(P−1) = H: that is (a) and (c). Count
    turns through all rounds: turn j ends after E_j = ⌊(j + 1)·H / P⌋ steps of the run and is sent after E_j − τ, so
    both ascend with j; τ < H is the rest of the first half of (b). After t steps, and the sends and merges that follow
    them, the turns with t < E_j ≤ t + τ are in flight. E_j ≤ s says that (j + 1)·H / P < s + 1, so ⌈(s + 1)·P / H⌉ − 1
    turns end by s, and between t and t + τ end ⌈(t + τ + 1)·P / H⌉ − ⌈(t + 1)·P / H⌉ ≤ ⌈τ·P / H⌉. Before these sends
    and merges, the turns with t ≤ E_j < t + τ are in flight: no more, and a merge comes before a send. Just before a
    turn ends, the values of the fragment's turn before it were merged H steps ago and sent H + τ steps ago. For (e) all
    compute g from the same outer parameters, momentum and mean.

    *Assumed of the program:* it obeys these rules, all workers take the same number of steps (join mode keeps one whose
    data ended in every turn), and each parameter is in one fragment.
    Returns `fragments` (P), `every` (H), `apart`, `late` (τ) and `flying`; for sums over all workers also `age` and
    `equal`, for groups `period`. All but `fragments`, `flying` and `equal` are in steps.
    """
    if schedule.num_fragments == 1 and schedule.late_steps == 0:
        return None
    count, every, late = schedule.num_fragments, max(schedule.worker_steps), schedule.late_steps
    found = {"fragments": count, "every": every, "apart": min(schedule.worker_steps) // count, "late": late}
    found["flying"] = max(1, -(-late * count // every))
    relaxation = schedule.averages_of_all.get(0)
    if relaxation and schedule.period == 1:
        return {**found, "age": every + late, "equal": relaxation == 1}
    return {**found, "period": every * schedule.period}


def equal_replicas(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `equal-replicas`, by the rules of rounds: after which rounds all workers hold bitwise equal parameters.

    **Gradients** (`of` = "gradients"). Each round is one step of every worker, and averages the gradients of all of
    them, synchronously or in a pipeline. *Theorem:* all workers hold the same parameters and the same optimizer state
    after every step. *Proof:* they start equal, and in each step, also while a pipeline drains, all apply the same bits
    or none at the same learning rate: an update is a function of parameters, state and gradient.

    **Parameters** (`of` = "parameters"). *Theorem:* after a round t of the period that is one plain average over all
    workers (relaxation 1), synchronously, all hold the same parameters: the average, or the outer step with it,
    from outer parameters and a momentum that are the same for all, since only rounds of all change them. With a codec
    the average is decoded from the same bytes by all, and added to a reference that is the same for all. In the other
    rounds, and after steps, parameters may differ; so may optimizer state, always. Fragments in turn are not
    covered. The rounds of the prologue are such averages as well.

    Why all take the same bits. A sum is made once for each part of the array and copied to all; with a codec of blocks
    a part is summed by one member, rounded once, and all decode its bytes, that member too. In 16 bits the finished sum
    is a 16-bit number, which all widen in the same way.

    *Assumed of the program:* the same parameters and state at the start (the runtime broadcasts them), and a
    deterministic optimizer that is set up in the same way on all workers. State that is not averaged, such as buffers,
    is not covered.
    Returns `of` ("gradients" or "parameters"), and `rounds`, the rounds of the period after which all are equal.
    """
    rounds = [t for t, relaxation in schedule.averages_of_all.items() if relaxation == 1]
    if not rounds or schedule.is_late or schedule.num_fragments > 1:
        return None
    return {"of": "gradients" if schedule.averages_gradients else "parameters", "rounds": rounds}
