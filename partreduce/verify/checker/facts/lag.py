"""`lag`, by the rules of a pipeline: how old the gradients are that a step applies, and which steps apply none.

A pipeline of width K averages the gradients of all workers while later steps compute. Number the steps of a worker
0, 1, 2, … and call g_s the mean (or the sum) of what all workers took in step s, each before the update of that step.
The first `warm_up` steps are synchronous: step s applies g_s. From then on a worker keeps a queue, empty at first, of
averages that are in flight. In each step s it

    1. takes its gradient; if K − 1 averages are in the queue, takes the oldest out and waits for it;
    2. begins the average g_s, at the end of the queue;
    3. applies what it took out, or a gradient of 0 if it took out nothing.

Sent by layers, pieces of g_s begin as they are there, but not before the oldest has arrived that step s takes out.

*Theorem.* Let W = `warm_up` and d = K − 1 = `lag`. (a) Step s ≥ W + d applies g_(s−d): a gradient is exactly d steps
old. (b) The d steps W … W + d − 1 apply 0. (c) At most d averages are ever in flight. (d) After
T steps the queue holds the last q = min(d, max(T − W, 0)) gradients g_(T−q) … g_(T−1): d of them where T ≥ W + d, fewer
in a shorter run. With drain `apply` they are applied then, one after the other, so that in all T + q updates each of
the T gradients was applied once, and in order; with `drop` they are thrown away, and these q of T gradients, `left_out`
= d at most, were never applied.

*Proof.* By induction on s the queue holds, at the beginning of step s ≥ W, the last q = min(s − W, d) gradients g_(s−q)
… g_(s−1) in order: none for s = W. If s − W ≥ d, step s takes out g_(s−d) and appends g_s, which leaves d; if not, it
takes out none, and q + 1 = s + 1 − W ≤ d are left. That is (a), (b) and (c), and for s = T it is (d), where the queue
is empty for T ≤ W.

All workers have the same queue, since they take the same number of steps: join mode keeps one whose data ended in every
step that anybody takes. A load empties the queue, and so does an end after which the run goes on (of a join, say): then
everything above counts from there, with W = 0 or what is left of it.

*Assumed of the program:* it obeys these rules.
"""

from __future__ import annotations

from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, _: Work) -> Numbers | None:
    """`lag`, `warm_up`, `left_out`."""
    if not schedule.pipeline:
        return None
    drops = schedule.pipeline["drain"] == "drop"
    return {"lag": schedule.lag, "warm_up": schedule.pipeline["warm_up"], "left_out": schedule.lag if drops else 0}
