"""Contestants whose gradients come late or travel small: Pipe-SGD's, and the baselines of its paper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.registry import build
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import LOCKSTEP, Codec, CodecScope, Form, How, Pipeline, Sending, When
from partreduce.topo.strategies.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.setting import Setting
    from partreduce.topo.cluster import Cluster

    Make = Callable[[Cluster, Setting], Schedule | None]

WARM_UP = 8
"""Steps in lockstep before gradients come late."""
HIERARCHICAL_INT8 = How(form=Form.HIERARCHICAL, codec=Codec.INT8, where=CodecScope.ACROSS_NODES)


def everyone(name: str, how: How, when: When = LOCKSTEP) -> Make:
    """All gradients in every step; the hierarchical form says nothing new where a node has one worker."""

    def make(cluster: Cluster, _: Setting) -> Schedule | None:
        if how.form is Form.HIERARCHICAL and cluster.workers_per_node == 1:
            return None
        return Schedule(name, cluster, AllReduce(when=when, how=how))

    return make


def one_host(name: str, how: How) -> Make:
    """Worker 0 holds all parameters and serves them: all workers meet at one NIC, as in the paper's PS-Sync."""
    return lambda cluster, _: Schedule(name, cluster, Server(hosts=(0,), synchronous=True, how=how))


def node_then_all(rounds: int, how: How) -> Make:
    """Node averages, and everybody's after so many of them, whose sums travel as said."""

    def make(cluster: Cluster, _: Setting) -> Schedule:
        strategy: Any = build("node-then-all", cluster, node_rounds=rounds).strategy
        return Schedule(f"node-then-all-{rounds}-{how.codec}", cluster, replace(strategy, how=how))

    return make


def without_codec(make: Make) -> Make:
    """The same schedule with numbers as they are."""

    def plain(cluster: Cluster, setting: Setting) -> Schedule | None:
        schedule = make(cluster, setting)
        if schedule is None:
            return None
        strategy: Any = schedule.strategy
        how = How(form=strategy.how.form, sending=strategy.how.sending)
        return Schedule(f"{schedule.name}-plain", schedule.cluster, replace(strategy, how=how))

    return plain


def entries() -> list[dict[str, Any]]:
    """Fields of the contestants, in the order of the table."""
    lockstep: dict[str, Any] = {"twin": "flat ring", "family": "small"}
    late: dict[str, Any] = {"twin": "pipeline", "family": "late"}
    made: list[tuple[str, How, dict[str, Any]]] = [
        ("flat ring, layers", How(sending=Sending.LAYERS), {**lockstep, "family": "All-Reduce"}),
        ("flat ring, float16", How(codec=Codec.FLOAT16), lockstep),
        ("flat ring, int8", How(codec=Codec.INT8), lockstep),
        ("hierarchical, float16", replace(HIERARCHICAL_INT8, codec=Codec.FLOAT16), lockstep),
        ("hierarchical, int8", HIERARCHICAL_INT8, lockstep),
        ("pipeline", How(), late),
        ("pipeline, layers", How(sending=Sending.LAYERS), late),
        ("pipeline, float16", How(codec=Codec.FLOAT16), late),
        ("pipeline, int8", How(codec=Codec.INT8), late),
        ("pipeline, layers, int8", How(codec=Codec.INT8, sending=Sending.LAYERS), late),
        ("pipeline, hierarchical", How(form=Form.HIERARCHICAL), late),
        ("pipeline, hierarchical, float16", replace(HIERARCHICAL_INT8, codec=Codec.FLOAT16), late),
        ("pipeline, hierarchical, int8", HIERARCHICAL_INT8, late),
    ]
    found = [
        {
            "name": name,
            "make": everyone(name.replace(", ", "-").replace(" ", "-"), how, Pipeline() if rest is late else LOCKSTEP),
            "form": how.form.value,
            **rest,
        }
        for name, how, rest in made
    ]
    for name, how in (("pipeline, warm-up", How()), ("pipeline, int8, warm-up", How(codec=Codec.INT8))):
        make = everyone(name.replace(", ", "-"), how, Pipeline(warm_up=WARM_UP))
        found.append({"name": name, "make": make, "family": "late", "twin": "pipeline, warm-up"})
    found += [
        {
            "name": f"node-then-all {rounds}, hierarchical, int8",
            "make": node_then_all(rounds, HIERARCHICAL_INT8),
            "family": "small",
            "twin": "node-then-all 15",
            "form": "hierarchical",
        }
        for rounds in (15, 23)
    ]
    for name, how in (
        ("server on one host, synchronous", How()),
        ("server on one host, synchronous, int8", How(codec=Codec.INT8)),
    ):
        make = one_host(name.replace(", ", "-").replace(" ", "-"), how)
        found.append({"name": name, "make": make, "family": "server", "twin": "flat ring", "once": True})
    return found
