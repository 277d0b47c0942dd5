"""`partreduce design`: the schedule for a cluster, searched for or built by name, as JSON."""

import re
from dataclasses import replace
from pathlib import Path

import typer

from partreduce.commands import cluster_options, options
from partreduce.commands import design_options as own
from partreduce.commands.design_list import list_entries
from partreduce.commands.options import SyncChoice
from partreduce.commands.simulate_tables import touched_of
from partreduce.console import claim_stdout, console, emit_json, suggest_verify
from partreduce.planner.job import Data, Delay, PlanRequest, effort_of
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.tables import ModelFacts, read_model
from partreduce.schedulers import registry
from partreduce.schedulers.synthesis.problem import Objective
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
from partreduce.topo.units import parse_time

BUILDING = ("cluster", "listing", "build", "tolerate_failures", "output", "as_json")
"""What building an entry of the catalogue takes; all else is the planner's."""
LISTING = ("cluster", "listing", "build", "as_json")


def command(
    context: typer.Context,
    cluster: own.ClusterOrNone = None,
    *,
    model: own.ModelFile = None,
    model_bytes: options.ModelBytes = None,
    data: own.DataName = Data.SHUFFLED,
    optimizer: own.OptimizerName = None,
    pilot: own.PilotFile = None,
    settings: options.Settings = None,
    algorithm: options.AlgorithmName = options.AlgorithmChoice.ANY,
    sync: options.SyncName = options.SyncChoice.ANY,
    codec: options.CodecName = options.CodecChoice.NONE,
    objective: own.ObjectiveName = Objective.BALANCED,
    most: own.Most = None,
    effort: own.Effort = None,
    time_limit: own.TimeLimit = None,
    select: own.Select = None,
    tolerate_failures: own.TolerateFailures = 0,
    build: own.Build = None,
    listing: own.Listing = False,
    output: own.Output = None,
    plot: own.PlotFile = None,
    show_front: own.ShowFront = False,
    explain: own.Explain = False,
    as_json: options.Json = False,
) -> None:
    """Find the schedule that suits a cluster and show the trade-offs, or build a catalogue entry with --build."""
    # Long, because typer reads the options from the parameters; here they become a PlanRequest.
    if _is_answered_by_the_catalogue(
        context,
        cluster=cluster,
        listing=listing,
        build=build,
        tolerate_failures=tolerate_failures,
        output=output,
        as_json=as_json,
    ):
        return
    if model is not None and tolerate_failures:
        raise typer.BadParameter(
            "is for whole models, and --model has tables; leave one out", param_hint="--tolerate-failures"
        )
    if model is not None and model_bytes is not None:
        raise typer.BadParameter("is what --model reads; leave one of them out", param_hint="--model-bytes")

    from partreduce.commands.design_search import search

    place, given = load_cluster(cluster or ""), cluster_options.cluster_settings(settings)
    if "touched" in given and model is None:
        raise typer.BadParameter("touched needs --model FILE.py:NAME, whose tables it is about", param_hint="--set")
    hardware = cluster_options.hardware_of(place, given, model_bytes=model_bytes, default_model=options.DEFAULT_MODEL)
    limits, queues = own.limits_of(most)
    facts = None if model is None else _facts_of(model, given.get("touched"), place)
    assumed = cluster_options.hardware_defaults(place, given, model_bytes=model_bytes)
    told = options.member_or_none(Optimizer, optimizer or own.OptimizerChoice.ANY)
    if optimizer is None and facts is not None:
        told = facts.optimizer
    if optimizer is None and told is None and pilot is None:
        told = Optimizer.ADAM
        assumed["--optimizer"] = str(told)
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
        quorum={SyncChoice.ANY: None, SyncChoice.PARTIAL: True}.get(sync, False),
        gap={SyncChoice.ANY: None, SyncChoice.ITERATION_GAP: True}.get(sync, False),
        max_queues=queues,
        codec=options.member_or_none(Codec, codec),
        optimizer=told,
        disturbance=given.get("disturb"),
        time_limit=options.optional("--time-limit", parse_time, time_limit),
        effort=options.optional("--effort", effort_of, effort),
    )
    if (cluster or "").isdigit() and not as_json:
        claim_stdout(output, as_json=as_json)
        console().print(f"{cluster} is one node of {cluster} workers; {cluster}x1 would be {cluster} nodes of one.")
    if facts is not None:
        assumed.pop("--model-bytes", None)  # the model's own
    search(
        job, model=facts, assumed=assumed, output=output, plot=plot, as_json=as_json, show_front=show_front,
        explain=explain,
    )  # fmt: skip


def _is_answered_by_the_catalogue(
    context: typer.Context,
    *,
    cluster: str | None,
    listing: bool,
    build: str | None,
    tolerate_failures: int,
    output: Path | None,
    as_json: bool,
) -> bool:
    """List or build entries of the catalogue, where that is asked for; False where the planner is."""
    others = {parameter.name or "" for parameter in context.command.params}
    if listing:
        options.check_unused(context, others - set(LISTING), "says nothing to --list; leave one of them out")
        list_entries(cluster, build, as_json=as_json)
        return True
    if cluster is None:
        raise typer.BadParameter("is missing; write 4x4, 3,3,2 or a cluster file", param_hint="CLUSTER")
    if build is not None:
        reason = (
            "cannot be combined with --build: a catalogue schedule is built, not searched for; leave one of them out"
        )
        options.check_unused(context, others - set(BUILDING), reason)
        claim_stdout(output, as_json=as_json)
        _write(_built(cluster, build, tolerate_failures), output, as_json=as_json)
        return True
    return False


def _facts_of(model: str, touched: list[str] | None, cluster: Cluster) -> ModelFacts:
    return read_model(model, cluster, touched=touched_of(touched or [], cluster))


def _built(cluster: str, build: str, tolerate_failures: int) -> Schedule:
    """A catalogue entry, or the schedule of a file; with `tolerate_failures` it has a failure plan."""
    place = load_cluster(cluster)
    if tolerate_failures and build.endswith(".json"):
        schedule = load_schedule(build)
        if not schedule.cluster.same_shape(place):
            raise InputError(f"--build {build}: is for {schedule.cluster}, and CLUSTER is {place}; give the schedule's")
    else:
        name, entries = entry_of(build)
        parameters = options.parameters_of(entries, place=f"--build {build}")
        schedule = options.quantity("--build", lambda text: registry.build(text, place, **parameters), name)
    if not tolerate_failures:
        return schedule
    from partreduce.planner.failure_plans import survival

    hardware = cluster_options.hardware_of(place, {}, model_bytes=None, default_model=options.DEFAULT_MODEL)
    job = PlanRequest(cluster=replace(place, hardware=hardware), tolerate_failures=tolerate_failures)
    return survival(schedule, job).schedule


def _write(schedule: Schedule, output: Path | None, *, as_json: bool) -> None:
    """Write one schedule that was made; without -o the file's content goes to standard output."""
    if output is not None:
        write_schedule(output, schedule)
    if not as_json and output is None:
        emit_json(dump_schedule(schedule))
        return
    facts = {
        "name": schedule.name,
        "strategy": schedule.strategy.kind,
        "num_workers": schedule.num_workers,
        "period": phases_of(schedule)[0],
        "num_distinct_phases": phases_of(schedule)[1],
        "sha256": schedule_sha256(schedule),
        **({} if schedule.failure_plan is None else {"failure_plan": dump_fields(schedule.failure_plan)}),
    }
    if as_json:
        emit_json(facts | ({"output": str(output)} if output else {"schedule": dump_schedule(schedule)}))
        return
    console().print(
        f"{schedule.name} for {schedule.cluster}: {schedule.num_workers} workers, strategy {schedule.strategy.kind}, "
        f"period {facts['period'] or 'none'}, written to {output}"
    )
    suggest_verify(output)


def phases_of(schedule: Schedule) -> tuple[int | None, int | None]:
    """The period and the number of distinct phases, or None for strategies that have no fixed phases."""
    met = schedule.meetings
    return (met.period, met.num_distinct_phases()) if met.is_mixing else (None, None)


def entry_of(build: str) -> tuple[str, list[str]]:
    """`allreduce(every=4)`, as tables name it, → ("allreduce", ["every=4"]). Values may contain commas."""
    name, opened, rest = build.strip().partition("(")
    inside = rest.removesuffix(")").strip()
    return name, re.split(r",(?=[^,=]*=)", inside) if opened and inside else []
