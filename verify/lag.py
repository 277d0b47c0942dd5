"""Claim `lag`: how old the gradients are that a pipeline applies, which steps apply none, how many are in flight.

The theorem stands in `verify/checker/facts/lag.py`.
"""

from __future__ import annotations

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import WIDER, Drain, Pipeline
from partreduce.verify.base import Claim, follows

NAME = "lag"


def prove_lag(schedule: Schedule) -> Claim | None:
    """The ages in a pipeline, None where no gradient is late. O(1)."""
    when = schedule.strategy.when
    if not when.delays_gradients:
        return None
    assert isinstance(when, Pipeline), "the only value that delays gradients"
    lag, drops = when.lag, when.drain is Drain.DROP
    before, last = ("1 step", "the last step") if lag == 1 else (f"{lag} steps", f"the last {lag} steps")
    first = "the first one applies" if lag == 1 else f"the first {lag} apply"
    after = f" {when.warm_up} steps in lockstep" if when.warm_up else ""
    each = f"After{after} each" if after else "Each"
    text = (
        f"{each} step applies the {when.total} of all workers' gradients of exactly {before} before; {first} a "
        f"gradient of 0. Never more than {lag} of these "
        f"operations {'is' if lag == 1 else 'are'} in flight. "
    )
    least = f"T >= {when.warm_up + lag}"
    if drops:
        text += (
            f"Those of {last} are dropped at the end: {least} steps apply T - {lag} gradients, each once and in order."
        )
    else:
        text += (
            f"Those of {last} are applied at the end{'' if lag == 1 else ', one after the other'}: {least} steps apply "
            f"all T gradients, each once and in order, in T + {lag} updates."
        )
    text += (
        " A shorter run leaves only those in flight that it took behind the warm-up." if lag > 1 or when.warm_up else ""
    )
    witness = None
    if when.width > 2:
        text += f" A width of {when.width} was asked for, although {WIDER}."
        witness = {"width": when.width, "against": WIDER}
    return follows(NAME, text, witness, lag=lag, warm_up=when.warm_up, left_out=lag if drops else 0)
