"""Who competes: every way of synchronising that the lab knows, with its schedule and why it may be left out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.lab import gaps, late_and_small, quorums
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import Late, Lockstep
from partreduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.setting import Setting
    from partreduce.topo.cluster import Cluster

    Recommendation = Callable[[Cluster, Setting], Schedule | None]

EVERY_STEP = "All-Reduce"
"""The family whose best member is the baseline: exact averaging in every step."""

RECOMMENDED = "planner's recommendation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`make` gives the schedule for a cluster and a setting, or None where the contestant has nothing new to say.

    `grid` names its learning rates (setting.GRID); `twin` another contestant of the same mathematics, which therefore
    takes the same steps. `core` ones run in the short lab; `once` ones, which the wire makes very slow, run once, get
    twice the time, and leave the settings with slow workers out; `named_only` ones run where somebody names them.
    """

    name: str
    family: str
    how: str = "partreduce"
    make: Callable[[Cluster, Setting], Schedule | None] | None = None
    free_running: bool = False
    grid: str = "workers"
    twin: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    form: str = "ring"
    core: bool = False
    once: bool = False
    named_only: bool = False
    on_data: tuple[str, ...] = ("shuffled", "sorted")

    @property
    def rehearsed_as(self) -> str:
        """Whose steps and learning rate are this one's."""
        return self.twin or self.name

    def why_not(self, schedule: Schedule | None) -> str | None:
        """Why it cannot run here, or None."""
        if self.how != "partreduce" or schedule is None:
            return None
        return _cannot_run(schedule)


def _cannot_run(schedule: Schedule) -> str | None:
    kind = schedule.strategy.kind
    if kind in ("static", "allreduce") or find_spec(f"partreduce.runtime.strategies.{kind}") is not None:
        return None
    return f"the runtime has no strategy {kind!r} yet"


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


def _strategy(name: str, make: Callable[[Cluster], object]) -> Callable[[Cluster, Setting], Schedule]:
    def schedule(cluster: Cluster, setting: Setting) -> Schedule:  # noqa: ARG001 - the same in every setting
        return Schedule(name, cluster, make(cluster))  # type: ignore[arg-type]

    return schedule


def _server(*, synchronous: bool) -> Callable[[Cluster], object]:
    def make(cluster: Cluster) -> object:
        from partreduce.topo.strategies.server import Server

        size = cluster.workers_per_node or 1
        hosts = tuple(range(0, cluster.num_workers, size))
        return Server(hosts=hosts, synchronous=synchronous, staleness=None)

    return make


def _pairwise(*, overlap: bool) -> Callable[[Cluster], object]:
    def make(cluster: Cluster) -> object:
        from partreduce.topo.strategies.pairwise import Pairwise

        return Pairwise(active=tuple(range(0, cluster.num_workers, 2)), when=Late() if overlap else Lockstep())

    return make


def _generated(**options: Any) -> Callable[[Cluster], object]:  # noqa: ANN401 - fields of Generated
    def make(cluster: Cluster) -> object:  # noqa: ARG001 - independent of it
        from partreduce.topo.strategies.generated import Division, Generated, InitiatorRule

        return Generated(
            group_size=options.get("group_size", 3),
            division=Division(options["division"]),
            initiator=InitiatorRule(options["initiator"]),
            slow_threshold=options.get("slow_threshold", 4),
            all_every=options.get("all_every", 16),
        )

    return make


def contestants(
    planned: Recommendation,
    planned_corrected: Recommendation | None = None,
    planned_coded: Recommendation | None = None,
) -> list[Contestant]:
    """All of them, in the order of the table.

    `planned` is the planner's recommendation, `planned_corrected` that with drift correction, `planned_coded` that with
    a codec.
    """
    smart = {"division": "inter-intra"}
    return [
        Contestant(core=True, name="alone", family="none", how="alone", twin="local SGD, every 16"),
        Contestant(name="DDP", family=EVERY_STEP, how="ddp", twin="flat ring"),
        Contestant(core=True, name="flat ring", family=EVERY_STEP, make=_entry("allreduce")),
        Contestant(
            core=True, name="hierarchical", family=EVERY_STEP, how="hierarchical", form="hierarchical", twin="flat ring"
        ),
        Contestant(core=True, name="flat ring, overlapped", family=EVERY_STEP, make=_entry("allreduce", overlap=True)),
        Contestant(
            core=True,
            name="hierarchical, overlapped",
            family=EVERY_STEP,
            make=_entry("allreduce", overlap=True),
            twin="flat ring, overlapped",
            **HIERARCHICAL,
        ),
        Contestant(name="local SGD, every 4", family="local SGD", make=_entry("local-sgd", every=4)),
        Contestant(core=True, name="local SGD, every 16", family="local SGD", make=_entry("local-sgd", every=16)),
        Contestant(
            name="torch averager 1/16",
            family="local SGD",
            how="torch-averager",
            twin="node-then-all 15",
            options={"inner": 1, "outer": 16},
        ),
        Contestant(
            once=True,
            name="server, synchronous",
            family="server",
            make=_strategy("server", _server(synchronous=True)),
            twin="flat ring",
        ),
        Contestant(
            once=True,
            name="server, asynchronous",
            family="server",
            make=_strategy("server-asynchronous", _server(synchronous=False)),
            free_running=True,
            grid="server",
        ),
        Contestant(once=True, name="D-PSGD ring", family="D-PSGD", make=_entry("ring")),
        Contestant(once=True, name="D-PSGD ring, parallel", family="D-PSGD", make=_entry("ring", overlap=True)),
        Contestant(
            core=True,
            name="AD-PSGD",
            family="AD-PSGD",
            make=_strategy("ad-psgd", _pairwise(overlap=True)),
            free_running=True,
        ),
        Contestant(core=True, name="Figure 10", family="Prague", make=_entry("prague-figure-10")),
        Contestant(name="Figure 10, overlapped", family="Prague", make=_entry("prague-figure-10", overlap=True)),
        Contestant(
            once=True,
            name="generator, random",
            family="Prague",
            make=_strategy("random", _generated(division="random", initiator="paper", slow_threshold=None)),
            free_running=True,
        ),
        Contestant(
            name="generator, smart, paper's rule",
            family="Prague",
            make=_strategy("smart", _generated(initiator="paper", **smart)),
            free_running=True,
        ),
        Contestant(
            core=True,
            name="generator, smart, laggard-local",
            family="Prague",
            make=_strategy("smart-local", _generated(initiator="laggard-local", **smart)),
            twin="generator, smart, paper's rule",
            free_running=True,
        ),
        Contestant(
            name="generator, smart, laggard-late",
            family="Prague",
            make=_strategy("smart-late", _generated(initiator="laggard-late", **smart)),
            twin="generator, smart, paper's rule",
            free_running=True,
        ),
        Contestant(
            core=True,
            name="generator, node-then-all 24",
            family="Prague",
            make=_strategy(
                "node-then-all-24",
                _generated(division="node-then-all", initiator="laggard-late", all_every=24),
            ),
            twin="node-then-all 15",
            free_running=True,
            options={"form": "hierarchical"},
        ),
        Contestant(name="node-then-all 3", family="designed", make=_entry("node-then-all", node_rounds=3)),
        Contestant(core=True, name="node-then-all 15", family="designed", make=_entry("node-then-all", node_rounds=15)),
        *[
            Contestant(
                core=rounds == 23,
                name=f"node-then-all {rounds}, hierarchical",
                family="designed",
                make=_entry("node-then-all", node_rounds=rounds),
                twin="node-then-all 15",
                **HIERARCHICAL,
            )
            for rounds in (15, 23)
        ],
        Contestant(
            name="node-then-all 15, overlapped",
            family="designed",
            make=_entry("node-then-all", overlap=True, node_rounds=15),
        ),
        *[
            Contestant(
                name=f"all every {every}, overlapped",
                family="designed",
                make=_entry("allreduce", overlap=True, every=every),
            )
            for every in (8, 16)
        ],
        *[
            Contestant(
                name=f"{name}, corrected",
                family="drift correction",
                make=make,
                form=form,
                options={"drift_correction": "auto", "form": form},
                on_data=("sorted",),
            )
            for name, make, form in (
                ("Figure 10", _entry("prague-figure-10"), "ring"),
                ("node-then-all 3", _entry("node-then-all", node_rounds=3), "ring"),
                ("node-then-all 15", _entry("node-then-all", node_rounds=15), "ring"),
                ("local SGD, every 4", _entry("local-sgd", every=4), "ring"),
                (RECOMMENDED, planned_corrected or planned, "hierarchical"),
            )
        ],
        *[Contestant(**fields) for fields in (*late_and_small.entries(), *gaps.entries(), *quorums.entries())],
        Contestant(core=True, name=RECOMMENDED, family="designed", make=planned, **HIERARCHICAL),
        Contestant(
            name=f"{RECOMMENDED}, codec",
            family="designed",
            make=planned_coded or planned,
            form="hierarchical",  # its file says so, and with which codec
            twin="node-then-all 15",
        ),
        Contestant(
            name=f"{RECOMMENDED}, codec left out",
            family="designed",
            make=late_and_small.without_codec(planned_coded or planned),
            form="hierarchical",
            twin="node-then-all 15",
        ),
        Contestant(
            core=True, name="paced node-then-all 3", family="designed", make=_paced("node-then-all", node_rounds=3)
        ),
        *[
            Contestant(
                name=f"paced node-then-all {rounds}, plain means, hierarchical",
                family="designed",
                make=_paced("node-then-all", averaging=Averaging.MEAN, node_rounds=rounds),
                twin="paced node-then-all 3",
                **HIERARCHICAL,
            )
            for rounds in (3, 5)
        ],
        Contestant(name="paced all", family="designed", make=_paced("allreduce")),
        Contestant(name="paced all, sections of 3", family="designed", make=_paced("allreduce", factor=3)),
    ]
