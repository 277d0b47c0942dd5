"""Claim `lag`: in a pipeline a step applies gradients that are exactly `lag` steps old, and which steps apply none.

A pipeline of width K averages the gradients of all workers while later steps compute. Number the steps of a worker
0, 1, 2, … and call g_s the mean (or the sum) of what all workers took in step s, each before the update of that step.
The first `warm_up` steps are in lockstep: step s applies g_s. From then on a worker keeps a queue, empty at first, of
averages that are in flight. In each step s it

    1. takes its gradient; if K − 1 averages are in the queue, takes the oldest out and waits for it;
    2. begins the average g_s, at the end of the queue;
    3. applies what it took out, or a gradient of 0 if it took out nothing.

Sent by layers, pieces of g_s begin as they are there, but not before the oldest has arrived that step s takes out.

*Theorem.* Let W = `warm_up` and d = K − 1 = `lag`. (a) Step s ≥ W + d applies g_(s−d): a gradient is exactly d steps
old. (b) The d = `idle` steps W … W + d − 1 apply 0. (c) At most d = `in_flight` averages are ever in flight. (d) After
T ≥ W + d steps the queue holds g_(T−d) … g_(T−1). With drain `apply` they are applied then, one after the other, so
that in all T + d updates each of the T gradients was applied once, and in order; with `drop` they are thrown away, and
`left_out` = d of T gradients were never applied (T − W of them if W ≤ T < W + d).

*Proof.* By induction on s the queue holds, at the beginning of step s ≥ W, the last q = min(s − W, d) gradients
g_(s−q) … g_(s−1) in order: none for s = W. If s − W ≥ d, step s takes out g_(s−d) and appends g_s, which leaves d; if
not, it takes out none, and q + 1 = s + 1 − W ≤ d are left. That is (a), (b) and (c), and for s = T it is (d).

All workers have the same queue, since they take the same number of steps: join mode keeps one whose data ended in every
step that anybody takes. A load empties the queue, and so does an end after which the run goes on (of a join, say): then
everything above counts from there, with W = 0 or what is left of it.

*The check is sound because* it computes all numbers from the schedule. *It assumes* that the runtime obeys the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from ..schedule import Schedule


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`lag`, `warm_up`, `idle`, `in_flight`, `left_out`."""
    confirm(schedule.pipeline, "schedule", "when", "a pipeline of gradients")
    lag, drops = schedule.lag, schedule.pipeline["drain"] == "drop"
    expected = {
        "lag": lag,
        "warm_up": schedule.pipeline["warm_up"],
        "idle": lag,
        "in_flight": lag,
        "left_out": lag if drops else 0,
    }
    for name, number in expected.items():
        confirm_equal(f"{place}.{name}", entry[name], number)
