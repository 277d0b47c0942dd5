"""The options of `partreduce design` that no other verb has, and what its limits mean."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands import options
from partreduce.planner.job import Data
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.errors import InputError
from partreduce.topo.units import parse_number, parse_size, parse_time


class OptimizerChoice(StrEnum):
    """The choices of `design --optimizer`."""

    ANY = options.ANY
    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


LIMITS = ("communication", "consensus-distance", "period", "group", "phases", "queues")
MAX_PERIOD = 512

ClusterOrNone = Annotated[
    str | None, typer.Argument(help="4x4, 3,3,2, or a cluster file (.yaml, .json).", metavar="CLUSTER")
]
Build = Annotated[
    str | None,
    typer.Option(
        "--build",
        help="Build this catalogue entry instead of searching, such as 'allreduce(every=4)'.",
        metavar="NAME",
        autocompletion=options.catalogue_names,
        rich_help_panel=options.CATALOGUE,
    ),
]
Listing = Annotated[
    bool,
    typer.Option(
        "--list",
        help="List what --build can build, or with it explain one; with CLUSTER say what exists there.",
        rich_help_panel=options.CATALOGUE,
    ),
]
ModelFile = Annotated[
    str | None,
    typer.Option(
        help="Read the model's size, its tables and what a step touches of them from FILE.py, whose function NAME "
        "returns the model, or (model, batches).",
        metavar="FILE.py:NAME",
        rich_help_panel=options.MODEL,
    ),
]
ObjectiveName = Annotated[
    Objective, typer.Option(help="What the recommendation minimizes.", rich_help_panel=options.LIMITED)
]
Select = Annotated[
    str | None,
    typer.Option(
        "--select",
        help="Write this schedule of the table, not the recommendation.",
        metavar="NAME",
        rich_help_panel=options.LIMITED,
    ),
]
TolerateFailures = Annotated[
    int,
    typer.Option(
        help="Plan what survivors run after up to this many workers, or one node, have failed; --build may then name "
        "a schedule file.",
        metavar="K",
        min=0,
        rich_help_panel=options.LIMITED,
    ),
]
DataName = Annotated[Data, typer.Option(help="How samples are spread.", rich_help_panel=options.MODEL)]
OptimizerName = Annotated[
    OptimizerChoice | None,
    typer.Option(
        "--optimizer",
        help="Predict steps for this optimizer; AdamW is adam, which is assumed where neither --model nor --pilot says "
        "it.",
        rich_help_panel=options.MODEL,
    ),
]
PilotFile = Annotated[
    Path | None,
    typer.Option(
        help="Prices of your own job, as measured by partreduce measure.", metavar="FILE", rich_help_panel=options.MODEL
    ),
]
Most = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        help="A limit; may be repeated. KEY=VALUE is one of communication=110ms (per step), consensus-distance=8/7, "
        "period=24 (phases; the default), group=8 (workers), phases=6 (distinct ones: communicator splits), queues=4GB "
        "(of iteration_gap or partial).",
        metavar="KEY=VALUE",
        autocompletion=options.members(*(f"{key}=" for key in LIMITS)),
        rich_help_panel=options.LIMITED,
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(
        help="How much to compute: quick (the default, without a search unless limits ask for it), thorough, or a "
        "number of nominal seconds. Counted, so the same answer each time.",
        autocompletion=options.members("quick", "thorough"),
        metavar="EFFORT",
        rich_help_panel=options.LIMITED,
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        help="Stop after this long, such as 30s; without --effort search as long.",
        metavar="TIME",
        rich_help_panel=options.LIMITED,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where to write the schedule.", rich_help_panel=options.WRITTEN)
]
ShowFront = Annotated[
    bool,
    typer.Option(
        "--all", help="Print the front as well, with the names for --select.", rich_help_panel=options.WRITTEN
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print all reasons and cautions as well.", rich_help_panel=options.WRITTEN)
]
PlotFile = Annotated[
    Path | None,
    typer.Option(help="Picture of the front: .png, .svg, .pdf.", rich_help_panel=options.WRITTEN),
]


def limits_of(entries: list[str] | None) -> tuple[Limits, int | None]:
    """The limits that `--max` states, and the most bytes of queues.

    Raises:
        InputError: a key that is not there, or a value that is not understood.
    """
    readers: dict[str, Callable[[str], object]] = dict(
        zip(LIMITS, (parse_time, parse_number, _period, options.whole(2), options.whole(1), parse_size), strict=True)
    )
    most = options.settings_of("--max", entries, readers, "communication=110ms")
    limits = Limits(
        max_communication=most.get("communication"),
        max_consensus_distance=most.get("consensus-distance"),
        max_period=most.get("period", 24),
        max_group=most.get("group"),
        max_distinct_phases=most.get("phases"),
    )
    return limits, most.get("queues")


def _period(text: str) -> int:
    if (phases := options.whole(1)(text)) > MAX_PERIOD:
        raise InputError(f"{text!r} is more than {MAX_PERIOD} phases")
    return phases
