"""`fragments`, by the rules of turns: when each part of the model is averaged, and how old it gets.

The model is cut into P fragments, every parameter in one. Of every H steps, H being the steps_per_round, fragment p = 0
… P − 1 has its turn after e_p = ⌊(p + 1)·H / P⌋: what all workers hold of it after e_p − τ steps is summed, and after
e_p it is
merged: x ← α·x + (1 − α)·g, where g is what an outer step makes of the mean. Where e_p ≤ τ it is sent so
many steps before its round begins, and has no turn in the first round. A worker that has both to do after a step merges
first, unless τ is 0. A model that is merged τ steps late is one fragment.

*Theorem*, for P ≤ H and τ < H, which every schedule that can be read obeys. (a) Every fragment has exactly one turn in
each round of H steps, at the same place of it. (b) All workers send fragments in one order, at most one a step, and
merge them in the same order, each before it is sent again. At most `flying` = ⌈τ·P / H⌉ are in flight at any time, and
one where τ is 0. (c) Between two turns lie at least `apart` = ⌊H / P⌋ steps. (d) What a worker holds of the others'
fragment is at most `age` = H + τ steps old. (e) Where α is 0 a fragment is equal on all workers after its turn
(`equal`).

Where steps per round differ (τ and α are 0 then) all this holds with each worker's own H and steps: in a round each has
the turns 0 … P − 1 in this order, so all have one order. `every` and `age` are of the largest H, `apart` of the least.

(d) and (e) are of sums over all workers. Where rounds have groups, τ and α are 0: a fragment's turn in round k is an
operation of the groups of round k, so it meets all of the period's groups in `period` = H · T steps, T being their
number, and (a), (b) and (c) hold. Of each fragment alone everything is as of a whole model, a part of a round earlier.

*Proof.* As H / P ≥ 1, e_p ascends from ⌊H / P⌋ by ⌊H / P⌋ or one more to e_(P−1) = H: that is (a) and (c). Count turns
through all rounds: turn j ends after E_j = ⌊(j + 1)·H / P⌋ steps of the run and is sent after E_j − τ, so both ascend
with j, and which turn it is follows from the step alone; τ < H is the rest of the first half of (b). After t steps, and
what is due then, those turns are in flight that have been sent and not merged: t < E_j ≤ t + τ. E_j ≤ s says that
(j + 1)·H / P < s + 1, so ⌈(s + 1)·P / H⌉ − 1 turns end by s, and between t and t + τ end ⌈(t + τ + 1)·P / H⌉ −
⌈(t + 1)·P / H⌉ ≤ ⌈τ·P / H⌉. Before what is due then, those are in flight with t ≤ E_j < t + τ: no more, and a merge
comes before a send. Just before a turn ends, what came with the last one is H steps after its merging and H + τ after
its sending. For (e) all compute g from the same outer parameters, momentum and mean, as `equal-replicas` says of whole
models.

*Assumed of the program:* it obeys these rules, all workers take the same number of steps (join mode keeps one whose
data ended in every turn of a round that anybody begins), and it refuses a model of which a parameter is in no fragment,
or in two; which are in which, the file says by patterns, or leaves to the program by their number.
"""

from __future__ import annotations

from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, _: Work) -> Numbers | None:
    """`fragments`, `every`, `apart`, `late`, `flying`; `age` and `equal` of sums over all, `period` of groups."""
    if not schedule.takes_turns:
        return None
    count, every, late = schedule.tables.num_fragments, max(schedule.worker_steps), schedule.late_steps
    found = {"fragments": count, "every": every, "apart": min(schedule.worker_steps) // count, "late": late}
    found["flying"] = max(1, -(-late * count // every))
    relaxation = schedule.averages_of_all.get(0)
    if relaxation is not None and schedule.period == 1:
        return {**found, "age": every + late, "equal": relaxation == 1}
    return {**found, "period": every * schedule.period}
