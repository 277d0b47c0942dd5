"""Who competes: every way of synchronising that the lab knows, with its schedule and why it may be left out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmarks.lab import gaps, late_and_small, quorums
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Late
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.generated import Division, Generated, InitiatorRule
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.setting import Setting
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.strategies.base import Strategy

    Recommendation = Callable[[Cluster, Setting], Schedule | None]

EVERY_STEP = "All-Reduce"
"""The family whose best member is the baseline: exact averaging in every step."""

RECOMMENDED = "planner's recommendation"


@dataclass(frozen=True, slots=True)
class Contestant:
    """`make` gives the schedule for a cluster and a setting, or None where the contestant has nothing new to say.

    `grid` names its learning rates (setting.GRID); `twin` another contestant of the same mathematics, which therefore
    takes the same steps. `core` ones run in the short lab. `once` ones, which a thin wire makes slow, run once, get
    twice the time, and leave settings with slow workers out where nobody names them; `named_only` ones leave all out.
    """

    name: str
    family: str
    make: Callable[[Cluster, Setting], Schedule | None] | None = None
    how: str = "partreduce"
    free_running: bool = False
    grid: str = "workers"
    twin: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    form: str = "ring"
    core: bool = False
    once: bool = False
    named_only: bool = False

    @property
    def rehearsed_as(self) -> str:
        """Whose steps and learning rate are this one's."""
        return self.twin or self.name


def _entry(name: str, *, overlap: bool = False, **parameters: object) -> Callable[[Cluster, Setting], Schedule]:
    def make(cluster: Cluster, setting: Setting) -> Schedule:  # noqa: ARG001 - the same in every setting
        from partreduce.schedulers.registry import build

        schedule = build(name, cluster, **parameters)
        return _with(schedule, when=Late()) if overlap else schedule

    return make


HIERARCHICAL: dict[str, Any] = {"form": "hierarchical", "options": {"form": "hierarchical"}}
"""Groups across nodes add up inside nodes first: for the prediction, and for the run."""


def _with(schedule: Schedule, **changes: object) -> Schedule:
    strategy: Any = schedule.strategy
    words = "-".join("overlap" if key == "when" else key for key in changes)
    return Schedule(f"{schedule.name}-{words}", schedule.cluster, replace(strategy, **changes))


def _paced(
    name: str, factor: int = 1, averaging: Averaging = Averaging.STEP_NORMALISED, **parameters: object
) -> Callable[[Cluster, Setting], Schedule | None]:
    """A schedule in which slow workers take fewer steps per round, as many as fit into the others' time.

    `factor` multiplies everybody's pace: the section length.
    """

    def make(cluster: Cluster, setting: Setting) -> Schedule | None:
        from partreduce.schedulers.registry import build

        slowest = max([1.0, *(value for _, value in setting.slow)])
        if slowest == 1:
            return None
        fast = factor * round(slowest)
        slow = dict(setting.slow)
        paces = tuple(max(1, round(fast / slow.get(rank, 1.0))) for rank in range(cluster.num_workers))
        return _with(build(name, cluster, **parameters), pace=paces, averaging=averaging)

    return make


def _strategy(name: str, make: Callable[[Cluster], Strategy]) -> Callable[[Cluster, Setting], Schedule]:
    return lambda cluster, _: Schedule(name, cluster, make(cluster))


def _server(*, synchronous: bool) -> Callable[[Cluster], Strategy]:
    """A shard on the first worker of each node."""
    return lambda cluster: Server(
        hosts=tuple(range(0, cluster.num_workers, cluster.workers_per_node or 1)),
        synchronous=synchronous,
        staleness=None,
    )


def _generated(name: str, division: str, initiator: str, **options: Any) -> Callable[[Cluster, Setting], Schedule]:  # noqa: ANN401 - fields of Generated
    given = {"group_size": 3, "slow_threshold": 4, "all_every": 16, **options}
    strategy = Generated(division=Division(division), initiator=InitiatorRule(initiator), **given)
    return _strategy(name, lambda _: strategy)


def contestants(
    planned: Recommendation,
    planned_coded: Recommendation | None = None,
) -> list[Contestant]:
    """All of them, in the order of the table.

    `planned` is the planner's recommendation, `planned_coded` that with a codec.
    """
    row, by_rule, rarely = Contestant, "generator, smart, paper's rule", "node-then-all 15"
    core: dict[str, Any] = {"core": True}
    free: dict[str, Any] = {"free_running": True}
    coded: dict[str, Any] = {"form": "hierarchical"}  # the file says the form, and with which codec
    late = {"overlap": True}
    return [
        row("alone", "none", how="alone", twin="local SGD, every 16", **core),
        row("DDP", EVERY_STEP, how="ddp", twin="flat ring"),
        row("flat ring", EVERY_STEP, _entry("allreduce"), **core),
        row("hierarchical", EVERY_STEP, how="hierarchical", form="hierarchical", twin="flat ring", **core),
        row("flat ring, overlapped", EVERY_STEP, _entry("allreduce", **late), **core),
        row(
            "hierarchical, overlapped",
            EVERY_STEP,
            _entry("allreduce", **late),
            twin="flat ring, overlapped",
            **core,
            **HIERARCHICAL,
        ),
        row("local SGD, every 4", "local SGD", _entry("local-sgd", every=4)),
        row("local SGD, every 16", "local SGD", _entry("local-sgd", every=16), **core),
        row("torch averager 1/16", "local SGD", how="torch-averager", twin=rarely, options={"inner": 1, "outer": 16}),
        row(
            "server, synchronous", "server", _strategy("server", _server(synchronous=True)), once=True, twin="flat ring"
        ),
        row(
            "server, asynchronous",
            "server",
            _strategy("server-asynchronous", _server(synchronous=False)),
            once=True,
            grid="server",
            **free,
        ),
        row("D-PSGD ring", "D-PSGD", _entry("ring"), once=True),
        row("D-PSGD ring, parallel", "D-PSGD", _entry("ring", **late), once=True),
        row(
            "AD-PSGD",
            "AD-PSGD",
            _strategy("ad-psgd", lambda all_: Pairwise(active=tuple(range(0, all_.num_workers, 2)), when=Late())),
            **core,
            **free,
        ),
        row("Figure 10", "Prague", _entry("prague-figure-10"), **core),
        row("Figure 10, overlapped", "Prague", _entry("prague-figure-10", **late)),
        row(
            "generator, random",
            "Prague",
            _generated("random", "random", "paper", slow_threshold=None),
            once=True,
            **free,
        ),
        row(by_rule, "Prague", _generated("smart", "inter-intra", "paper"), **free),
        *(
            row(
                f"generator, {name}, as published",
                "Prague",
                _generated(f"{name}-published", division, "paper", max_known=None, **more),
                named_only=True,
                **free,
            )
            for name, division, more in (("smart", "inter-intra", {}), ("random", "random", {"slow_threshold": None}))
        ),
        *(
            row(
                f"generator, smart, laggard-{how}",
                "Prague",
                _generated(f"smart-{how}", "inter-intra", f"laggard-{how}"),
                twin=by_rule,
                core=how == "local",
                **free,
            )
            for how in ("local", "late")
        ),
        row(
            "generator, node-then-all 24",
            "Prague",
            _generated("node-then-all-24", "node-then-all", "laggard-late", all_every=24),
            twin=rarely,
            options={"form": "hierarchical"},
            **core,
            **free,
        ),
        row("node-then-all 3", "designed", _entry("node-then-all", node_rounds=3)),
        row(rarely, "designed", _entry("node-then-all", node_rounds=15), **core),
        *(
            row(
                f"node-then-all {rounds}, hierarchical",
                "designed",
                _entry("node-then-all", node_rounds=rounds),
                twin=rarely,
                core=rounds == 23,
                **HIERARCHICAL,
            )
            for rounds in (15, 23)
        ),
        row("node-then-all 15, overlapped", "designed", _entry("node-then-all", node_rounds=15, **late)),
        *(
            row(f"all every {every}, overlapped", "designed", _entry("allreduce", every=every, **late))
            for every in (8, 16)
        ),
        *(row(**fields) for fields in (*late_and_small.entries(), *gaps.entries(), *quorums.entries())),
        row(RECOMMENDED, "designed", planned, **core, **HIERARCHICAL),
        row(f"{RECOMMENDED}, codec", "designed", planned_coded or planned, **coded),
        row(
            f"{RECOMMENDED}, codec left out",
            "designed",
            late_and_small.without_codec(planned_coded or planned),
            **coded,
        ),
        row("paced node-then-all 3", "designed", _paced("node-then-all", node_rounds=3), **core),
        *(
            row(
                f"paced node-then-all {rounds}, plain means, hierarchical",
                "designed",
                _paced("node-then-all", averaging=Averaging.MEAN, node_rounds=rounds),
                twin="paced node-then-all 3",
                **HIERARCHICAL,
            )
            for rounds in (3, 5)
        ),
        row("paced all", "designed", _paced("allreduce")),
        row("paced all, sections of 3", "designed", _paced("allreduce", factor=3)),
    ]
