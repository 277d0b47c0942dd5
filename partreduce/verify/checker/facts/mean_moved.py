"""Fact `mean-moved`, of schedules with a failure plan: how far a loss moves the workers' mean, and a join.

Let n workers have the models x_i and the mean m, and d² = Σ ‖x_i − m‖²/n, their squared disagreement at one instant.

*Theorem 1.* Without the k workers in S the mean is m + Σ_S (m − x_i)/(n − k); for one worker m + (m − x_i)/(n − 1).
With one more, a copy of worker j, it is m + (x_j − m)/(n + 1). The x_i − m sum to 0, which is all of it.

*Theorem 2.* A loss of k moves the mean by at most the root of k/(n − k)·d², `at_most`; a join by at most the root of (n
− 1)/(n + 1)²·d², `joined_at_most`. Let s be the sum of x_i − m over S, and A that of their squared lengths; over all
others the sum is −s, and the squared lengths sum to n·d² − A. So ‖s‖² ≤ k·A and ‖s‖² ≤ (n − k)·(n·d² − A), by Cauchy
and Schwarz. The smaller of the two is largest where they are equal, A = (n − k)·d², hence ‖s‖² ≤ k·(n − k)·d². For one
worker ‖x_j − m‖² ≤ (n − 1)·d².

*Theorem 3.* In the mean over all failures of k workers the square of the way is k/((n − 1)·(n − k))·d², `usual`; over
all donors it is d²/(n + 1)², `joined`. The inner products of different x_i − m sum to −n·d², so that each is −d²/(n −
1) in the mean, and ‖s‖² is k·d² − k·(k − 1)·d²/(n − 1) = k·(n − k)/(n − 1)·d².

All are attained: theorem 2 where the k that failed are at one point and all others at another. `failed` lists the sizes
of failures that the plan covers. Where gradients are averaged all models are equal, and d is 0. `consensus-distance`
bounds the mean of d² over the instants of a period, in units of the noise that a step adds.
"""

from __future__ import annotations

from fractions import Fraction

from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, work: Work) -> Numbers | None:
    """`failed`, and for each of these sizes `usual` and `at_most`; `joined`, `joined_at_most`."""
    plan, n = schedule.failure_plan, schedule.num_workers
    if plan is None:
        return None
    work.spend(len(schedule.nodes) + plan.failures)
    nodes = set(map(len, schedule.nodes)) or {schedule.node_size}
    sizes = sorted({*range(1, plan.failures + 1), *(size for size in nodes if n - size >= 2)})
    return {
        "failed": sizes,
        "usual": [str(Fraction(k, (n - 1) * (n - k))) for k in sizes],
        "at_most": [str(Fraction(k, n - k)) for k in sizes],
        "joined": str(Fraction(1, (n + 1) ** 2)),
        "joined_at_most": str(Fraction(n - 1, (n + 1) ** 2)),
    }
