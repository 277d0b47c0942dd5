"""`partreduce design`: search for the best schedule for a cluster, or build one by name, as JSON."""

import re
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from partreduce.commands import cluster_options, options
from partreduce.commands.options import in_model, in_output, panel
from partreduce.console import claim_stdout, console, emit_json, suggest_verify
from partreduce.planner.job import Data, Delay, PlanRequest, effort_of
from partreduce.planner.steps_model import Optimizer
from partreduce.report.table import Column, Table
from partreduce.schedulers import registry
from partreduce.schedulers.entry import Entry
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.closed_model import dump_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.pilot import load_pilot
from partreduce.topo.document.schedule import dump_schedule, load_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec
from partreduce.topo.units import parse_number, parse_size, parse_time

BUILDING = ("cluster", "listing", "build", "tolerate_failures", "output", "as_json")
"""The parameters that are valid when a catalogue entry is built; all others belong to the planner."""
LISTING = ("cluster", "listing", "build", "as_json")
LIMITS = ("communication", "consensus-distance", "period", "group", "phases", "queues")
MAX_PERIOD = 512

AlgorithmChoice = StrEnum("AlgorithmChoice", ["any", "ring", "hierarchical"])
OptimizerChoice = StrEnum("OptimizerChoice", ["any", "sgd", "momentum", "adam", "adamw"])
CodecChoice = StrEnum("CodecChoice", ["any", "none", "float16", "bfloat16", "int8"])
SyncChoice = StrEnum("SyncChoice", ["any", "synchronous", "delay", "pipeline", "iteration_gap", "partial"])
in_catalogue, in_transport, in_limits = map(panel, ("The catalogue", "How workers may average", "Objective and limits"))


def command(
    context: typer.Context,
    cluster: Annotated[
        str | None, typer.Argument(help="4x4, 3,3,2, or a cluster file (.yaml, .json).", metavar="CLUSTER")
    ] = None,
    *,
    model: Annotated[
        str | None,
        in_model(
            "Read the model's size, its tables and what a step touches of them from FILE.py, whose function NAME "
            "returns the model, or (model, batches).",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    model_bytes: options.ModelBytes = None,
    data: Annotated[Data, in_model("How samples are spread.")] = Data.SHUFFLED,
    optimizer: Annotated[
        OptimizerChoice | None,
        in_model(
            "Predict steps for this optimizer; adam and adamw are one, which is assumed where neither --model nor "
            "--pilot says it. momentum is SGD with momentum.",
            case_sensitive=False,
        ),
    ] = None,
    pilot: Annotated[
        Path | None, in_model("Prices of your own job, as measured by partreduce measure.", metavar="FILE")
    ] = None,
    settings: options.Settings = None,
    algorithm: Annotated[AlgorithmChoice, in_transport("How groups average.")] = AlgorithmChoice.any,
    sync: Annotated[
        SyncChoice,
        in_transport(
            "What a round waits for: for its averages (synchronous), for those of the round before (delay), gradients "
            "of an earlier step (pipeline), neighbors within a gap of iterations (iteration_gap), a quorum (partial)."
        ),
    ] = SyncChoice.any,
    codec: Annotated[
        CodecChoice,
        in_transport("Encoding of averages and of table rows; any chooses float16 or int8 where it pays."),
    ] = CodecChoice.none,
    objective: Annotated[Objective, in_limits("Objective of the recommendation.")] = Objective.BALANCED,
    most: Annotated[
        list[str] | None,
        in_limits(
            "A limit, such as communication=110ms or group=8; may be repeated. `partreduce help limits` lists "
            "all keys.",
            "--max", metavar="KEY=VALUE", autocompletion=options.members(*(f"{key}=" for key in LIMITS)),
        ),
    ] = None,
    effort: Annotated[
        str | None,
        in_limits(
            "How much to compute: quick (the default, without a search unless limits ask for it), thorough, or a "
            "number of nominal seconds. Counted, so the same answer each time.",
            autocompletion=options.members("quick", "thorough"), metavar="EFFORT",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        in_limits("Time limit of the search, such as 30s; without --effort the search takes as long.", metavar="TIME"),
    ] = None,
    select: Annotated[
        str | None, in_limits("Write this schedule of the table instead of the recommendation.", metavar="NAME")
    ] = None,
    tolerate_failures: Annotated[
        int,
        in_limits(
            "Plan what survivors run after up to this many workers, or one node, have failed; --build may then name "
            "a schedule file.",
            metavar="K", min=0,
        ),
    ] = 0,
    build: Annotated[
        str | None,
        in_catalogue(
            "Build this catalogue entry instead of searching, such as 'allreduce(every=4)'.",
            metavar="NAME", autocompletion=options.members(*registry.names()),
        ),
    ] = None,
    listing: Annotated[
        bool,
        in_catalogue(
            "List what --build can build, or with it explain one; with CLUSTER say what exists there.", "--list"
        ),
    ] = False,
    output: Annotated[Path | None, in_output("Where to write the schedule.", "--output", "-o")] = None,
    plot: Annotated[Path | None, in_output("Picture of the front: .png, .svg, .pdf.")] = None,
    show_front: Annotated[bool, in_output("Print the front as well, with the names for --select.", "--all")] = False,
    explain: Annotated[bool, in_output("Print all reasons and cautions as well.", "--explain")] = False,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Find the schedule that suits a cluster and show the trade-offs, or build a catalogue entry with --build."""
    others = {parameter.name or "" for parameter in context.command.params}
    if listing:
        options.check_unused(context, others - set(LISTING), "says nothing to --list; leave one of them out")
        _list(cluster, build, as_json=as_json)
        return
    if cluster is None:
        raise typer.BadParameter("is missing; write 4x4, 3,3,2 or a cluster file", param_hint="CLUSTER")
    if build is not None:
        reason = "a catalogue schedule is built, not searched for; leave one of them out"
        options.check_unused(context, others - set(BUILDING), f"cannot be combined with --build: {reason}")
        claim_stdout(output, as_json=as_json)
        _write(_built(cluster, build, tolerate_failures), output, as_json=as_json)
        return
    if model is not None and tolerate_failures:
        problem = "is for whole models, and --model has tables; leave one out"
        raise typer.BadParameter(problem, param_hint="--tolerate-failures")
    if model is not None and model_bytes is not None:
        raise typer.BadParameter("is what --model reads; leave one of them out", param_hint="--model-bytes")

    from partreduce.commands.design_search import search

    place, given = load_cluster(cluster), cluster_options.cluster_settings(settings)
    if "touched" in given and model is None:
        raise typer.BadParameter("touched needs --model FILE.py:NAME, whose tables it is about", param_hint="--set")
    hardware = cluster_options.hardware_of(place, given, model_bytes=model_bytes, default_model=options.DEFAULT_MODEL)
    limits, queues = limits_of(most)
    facts = None
    if model is not None:
        from partreduce.commands.design_model import read_model  # it needs torch

        facts = read_model(model, place, touched=cluster_options.touched_of(given.get("touched", []), place))
    assumed = cluster_options.hardware_defaults(place, given, model_bytes=model_bytes)
    named = OptimizerChoice.adam if optimizer is OptimizerChoice.adamw else optimizer or OptimizerChoice.any
    chosen = options.member_or_none(Optimizer, named)
    if optimizer is None and facts is not None:
        chosen = facts.optimizer
    if optimizer is None and chosen is None and pilot is None:
        chosen = Optimizer.ADAM
        assumed["--optimizer"] = str(chosen)
    job = PlanRequest(
        cluster=replace(place, hardware=hardware),
        objective=objective,
        data=data,
        take=select,
        tolerate_failures=tolerate_failures,
        pilot=None if pilot is None else load_pilot(pilot),
        limits=limits,
        algorithm=options.member_or_none(AllReduceAlgorithm, algorithm),
        sync=options.member_or_none(Delay, sync),
        quorum={SyncChoice.any: None, SyncChoice.partial: True}.get(sync, False),
        gap={SyncChoice.any: None, SyncChoice.iteration_gap: True}.get(sync, False),
        max_queues=queues,
        codec=options.member_or_none(Codec, codec),
        optimizer=chosen,
        disturbance=given.get("disturb"),
        time_limit=None if time_limit is None else options.quantity("--time-limit", parse_time, time_limit),
        effort=None if effort is None else options.quantity("--effort", effort_of, effort),
    )
    if cluster.isdigit() and not as_json:
        claim_stdout(output, as_json=as_json)
        console().print(f"{cluster} is one node of {cluster} workers; {cluster}x1 would be {cluster} nodes of one.")
    if facts is not None:
        assumed.pop("--model-bytes", None)  # `--model` gives its size
    search(
        job, model=facts, assumed=assumed, output=output, plot=plot, as_json=as_json, show_front=show_front,
        explain=explain,
    )  # fmt: skip


def limits_of(entries: list[str] | None) -> tuple[Limits, int | None]:
    """Parse the entries `KEY=VALUE` of `--max`.

    Returns:
        The limits of the search; and the limit `queues`, the bytes that a worker's queues of updates may hold, or None.
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


def _built(cluster: str, build: str, tolerate_failures: int) -> Schedule:
    """Build a catalogue entry, such as `allreduce(every=4)`, for a cluster (`4x4`, or a file).

    If `tolerate_failures` is above 0, a plan for as many failures is added, and `build` may be a schedule file.
    """
    place = load_cluster(cluster)
    if tolerate_failures and build.endswith(".json"):
        schedule = load_schedule(build)
        if not schedule.cluster.same_shape(place):
            raise InputError(f"--build {build}: is for {schedule.cluster}, and CLUSTER is {place}; give the schedule's")
    else:
        name, entries = options.quantity("--build", entry_of, build)
        parameters = options.parameters_of(entries, place=f"--build {build}")
        schedule = options.quantity("--build", lambda text: registry.build(text, place, **parameters), name)
    if not tolerate_failures:
        return schedule
    from partreduce.planner.failure_plans import survival

    job = PlanRequest(cluster=cluster_options.with_defaults(place), tolerate_failures=tolerate_failures)
    return survival(schedule, job).schedule


def _write(schedule: Schedule, output: Path | None, *, as_json: bool) -> None:
    """Write a built schedule and report it; without -o the file's content goes to standard output."""
    if output is not None:
        write_schedule(output, schedule)
    if not as_json and output is None:
        emit_json(dump_schedule(schedule))
        return
    period, distinct = phases_of(schedule)
    if as_json:
        facts = {
            "name": schedule.name, "strategy": schedule.strategy.kind, "num_workers": schedule.num_workers,
            "period": period, "num_distinct_phases": distinct, "sha256": schedule_sha256(schedule),
            **({} if schedule.failure_plan is None else {"failure_plan": dump_fields(schedule.failure_plan)}),
        }  # fmt: skip
        emit_json(facts | ({"output": str(output)} if output else {"schedule": dump_schedule(schedule)}))
        return
    console().print(
        f"{schedule.name} for {schedule.cluster}: {schedule.num_workers} workers, strategy {schedule.strategy.kind}, "
        f"period {period or 'none'}, written to {output}"
    )
    suggest_verify(output)


def phases_of(schedule: Schedule) -> tuple[int | None, int | None]:
    """Return the period in rounds and the number of distinct phases; (None, None) without fixed phases."""
    met = schedule.meetings
    return (met.period, met.num_distinct_phases()) if met.is_mixing else (None, None)


def entry_of(build: str) -> tuple[str, list[str]]:
    """Split a catalogue entry into name and parameters: `allreduce(every=4)` → ("allreduce", ["every=4"])."""
    name, opened, rest = build.strip().partition("(")
    if opened and not rest.endswith(")"):
        raise InputError(f"{build!r} does not end with a closing parenthesis; write {build.strip() + ')'!r}")
    inside = rest.removesuffix(")").strip()
    return name, re.split(r",(?=[^,=]*=)", inside) if opened and inside else []


def _list(cluster: str | None, name: str | None, *, as_json: bool) -> None:
    """List the catalogue, or explain the entry `name`; with a cluster, mark the entries that can be built for it."""
    place = None if cluster is None else load_cluster(cluster)
    chosen = list(map(registry.entry, registry.names()))
    if name is not None:
        chosen = [options.quantity("--build", registry.entry, name)]
    if as_json:
        documents = [_document(entry, place) for entry in chosen]
        emit_json(documents[0] if name is not None else {"entries": documents})
    elif name is not None:
        _explain(chosen[0], place)
    else:
        _print_entries(chosen, place)


def _document(entry: Entry, place: Cluster | None) -> dict[str, Any]:
    members = ("name", "kind", "summary", "source", "condition", "degree", "period", "metrics")
    document: dict[str, Any] = {member: getattr(entry, member) for member in members} | {
        "parameters": [
            {"name": p.name, "kind": p.kind, "default": p.default, "help": p.help, "choices": list(p.choices)}
            for p in entry.parameters
        ]
    }
    if place is not None:
        reason = entry.why_not(place)
        document |= {"fits": reason is None} | ({} if reason is None else {"why_not": reason})
    return document


def _print_entries(entries: list[Entry], place: Cluster | None) -> None:
    columns = [
        Column("name", justify="left"),
        Column("parameters", drop=1, justify="left", wraps=True),
        Column("summary", justify="left", wraps=True),
    ]
    rows = Table("Catalogue", columns + ([Column(f"fits {place}")] if place is not None else []))
    for entry in entries:
        row = [entry.name, ", ".join(p.name for p in entry.parameters), escape(entry.summary)]
        rows.add(*row, *([] if place is None else ["no" if entry.why_not(place) else "yes"]))
    console().print(rows)
    console().print(
        "`partreduce design --list --build NAME` explains one; `partreduce design CLUSTER --build NAME` builds it.",
        style="dim",
    )


def _explain(entry: Entry, place: Cluster | None) -> None:
    out = console()
    out.print(f"[bold]{entry.name}[/]: {escape(entry.summary)}")
    for label in ("source", "condition", "degree", "period", "metrics"):
        if value := getattr(entry, label):
            out.print(f"  {label}: {escape(str(value))}")
    for parameter in entry.parameters:
        default = "chosen for the cluster" if parameter.default is None else parameter.default
        out.print(f"  {parameter.name}=...: {escape(parameter.help)} (default: {default})")
    if place is not None:
        reason = entry.why_not(place)
        out.print(f"  on {place}: " + ("can be built" if reason is None else escape(reason)))
