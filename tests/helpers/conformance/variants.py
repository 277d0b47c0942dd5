"""The variants of every kind: its strategy with one field changed, or the error message if that is not supported.

The variant `resume` is the idiom "checkpoint", the first of `docs/make_conformance.py`'s columns that runs elsewhere:
`device` on four simulated ranks (helpers/device/cells.py), `failure` and `sharded` in processes.
"""

from dataclasses import replace

from helpers.conformance.kinds import KINDS, Kind
from partreduce import strategies as st


def with_codec(strategy, **transport):
    """Return the strategy with a codec; a server gets one host, so that all numbers are one block."""
    one_host = {"hosts": (0,)} if strategy.kind == "server" else {}
    return replace(strategy, transport=replace(strategy.transport, **transport), **one_host)


CHANGES = {
    "delay": lambda strategy: replace(strategy, sync=st.DelayedAveraging()),
    "codec": lambda strategy: with_codec(strategy, codec=st.Codec.INT8),
    "feedback": lambda strategy: with_codec(strategy, codec=st.Codec.INT4, error_feedback=True),
}
"""By variant, a function that changes a strategy."""

OUTER = "sync.delay brings it later"
ROUNDED = "rounded parameters lose every update that is smaller than their last digit"
NOT_ALL = "only where every round is of all workers, and none is late"
NEIGHBORS = ("neighbor", "neighbor, late", "neighbor, gap", "neighbor, gap, parallel")
FREE = ("server, asynchronous", "pairwise")
PROTOCOLS = ("allreduce, quorum", "neighbor, gap", "neighbor, gap, parallel", "dynamic_groups", "server", *FREE)
NO_CODEC = {
    **dict.fromkeys([*NEIGHBORS, *FREE], ROUNDED),
    "dynamic_groups": "its groups may leave out any worker that is slow or failed",
    "allreduce, quorum": "a quorum's sums are sent as they are",
}
REFUSED = {
    "delay": {
        **dict.fromkeys(["allreduce, outer", "allreduce, fragments", "static, outer"], OUTER),
        "allreduce, layers": "gradients of allreduce at steps_per_round 1 can go layer by layer",
        "dynamic_groups": "has no late averaging",
    },
    "codec": NO_CODEC,
    "feedback": {**NO_CODEC, **dict.fromkeys(["allreduce, late", "static", "static, outer"], NOT_ALL)},
    "failure": {
        "allreduce, quorum": "gradients that came too late wait on their worker for a later sum",
        "neighbor": "neighborhoods overlap",
        "neighbor, late": "neighborhoods overlap",
        "neighbor, gap": "what a worker waits for may never come",
        "neighbor, gap, parallel": "what a worker waits for may never come",
        "dynamic_groups": "the group generator plans",
        "server": "what a server holds fails with its host",
        "server, asynchronous": "what a server holds fails with its host",
        "pairwise": "workers agree on pairs as it comes",
    },
    "sharded": dict.fromkeys(PROTOCOLS, "its workers agree while the job runs"),
}
"""By variant and kind, a part of the error message that rejects it."""

ONE_LOSS = st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1)


def change(variant, kind):
    return Kind(CHANGES[variant](KINDS[kind].strategy))


def schedule_of(variant, kind):
    if variant == "failure":
        return replace(KINDS[kind].schedule, failure_plan=ONE_LOSS)
    return change(variant, kind).schedule


def cells_to_run():
    """Return the (variant, kind) to run: the first of those with equal strategies, and none that is itself a kind.

    Kinds without common rounds are left out, since only their messages show which worker is late; see
    tests/runtime/strategies.
    """
    seen = [kind.strategy for kind in KINDS.values()]
    for variant in CHANGES:
        for kind in KINDS:
            if kind not in [*REFUSED[variant], *FREE] and (strategy := change(variant, kind).strategy) not in seen:
                seen.append(strategy)
                yield variant, kind
