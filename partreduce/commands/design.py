"""`partreduce design`: the schedule for a cluster, searched for or built by name, as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partreduce.commands import options

if TYPE_CHECKING:
    from partreduce.planner.model_tables import ModelFacts
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule

OBJECTIVES = ("balanced", "communication", "consensus-distance", "drift", "waiting", "exact")
DATA = ("shuffled", "per-worker", "per-node")


BUILDING = ("cluster", "using", "param", "name", "output", "as_json")
"""What building an entry of the catalogue takes; all else is the planner's."""


def command(
    context: typer.Context,
    cluster: Annotated[str, typer.Argument(help="4x4, 3,3,2, or a cluster file (.yaml, .json).", metavar="CLUSTER")],
    *,
    using: Annotated[
        str | None,
        typer.Option(
            help="Build this catalogue entry instead of searching.",
            metavar="NAME",
            autocompletion=options.catalogue_names,
        ),
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A parameter of that entry.", metavar="KEY=VALUE")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name to write into the file.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Read the model's size, its tables and what a step touches of them from FILE.py, whose function NAME "
            "returns the model, or (model, batches).",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    touched: options.TouchedShares = None,
    model_bytes: options.ModelBytes = None,
    intra_bandwidth: options.Intra = None,
    nic_bandwidth: options.Nic = None,
    latency: options.Latency = None,
    rails: options.Rails = None,
    compute: options.Compute = None,
    slow: options.Slow = None,
    jitter: options.Jitter = None,
    disturb: options.Disturb = None,
    objective: Annotated[
        str,
        typer.Option(
            help=f"What the recommendation minimises: {', '.join(OBJECTIVES)}.",
            autocompletion=options.members(*OBJECTIVES),
        ),
    ] = "balanced",
    data: Annotated[
        str, typer.Option(help=f"How samples are spread: {', '.join(DATA)}.", autocompletion=options.members(*DATA))
    ] = "shuffled",
    drift_correction: Annotated[
        bool, typer.Option("--drift-correction", help="Count on it for sorted data; it needs plain SGD.")
    ] = False,
    pilot: Annotated[
        Path | None, typer.Option(help="Prices of your own job, which partreduce pilot measured.", metavar="FILE")
    ] = None,
    max_communication: Annotated[
        str | None, typer.Option(help="Budget per step, such as 110ms.", metavar="TIME")
    ] = None,
    max_consensus_distance: Annotated[
        str | None, typer.Option(help="Largest consensus distance to accept, such as 0.5 or 8/7.", metavar="X")
    ] = None,
    period: Annotated[int, typer.Option(help="Most phases in a period.", min=1, max=512)] = 24,
    max_group: Annotated[int | None, typer.Option(help="Most workers in a group.")] = None,
    max_distinct: Annotated[int | None, typer.Option(help="Most distinct phases (communicator splits).", min=1)] = None,
    max_queues: Annotated[
        str | None,
        typer.Option(help="Most memory for the queues of a gap or a quorum, such as 4GB.", metavar="SIZE"),
    ] = None,
    form: options.FormName = options.ANY,
    when: options.WhenName = options.ANY,
    codec: options.CodecName = options.NO_CODEC,
    curvature: Annotated[
        float | None,
        typer.Option(
            help="Learning rate times the largest curvature of the loss, if known; prices a pipeline.", metavar="H"
        ),
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="Take the least predicted time, though a simpler one may be as good.")
    ] = False,
    effort: Annotated[
        str | None,
        typer.Option(
            help="How much to compute: quick, normal (unless --time-limit is given), thorough, or a number of nominal "
            "seconds. Counted, so the same answer each time.",
            autocompletion=options.members("quick", "normal", "thorough"),
            metavar="EFFORT",
        ),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(help="Ends it after so long, whatever the effort; such as 30s.", metavar="TIME")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the search.", min=0)] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the schedule.")] = None,
    front: Annotated[Path | None, typer.Option(help="Where to write the whole front as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the front, or of quorums against imbalance: .png, .svg, .pdf.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find the schedule that suits a cluster, with the trade-off shown; or build a catalogue entry by --using."""
    # Long, because typer reads the options from the parameters; here they become a Job and are not copied again.
    if using is not None:
        _refuse_options_of_the_planner(context)
        _build(cluster, using, param or [], name, output, as_json=as_json)
        return
    if param:
        raise typer.BadParameter("needs --using NAME, whose parameter it is", param_hint="--param")
    if model is not None and model_bytes is not None:
        raise typer.BadParameter("is what --model reads; leave one of them out", param_hint="--model-bytes")
    if touched is not None and model is None:
        raise typer.BadParameter("needs --model FILE.py:NAME, whose tables it is about", param_hint="--touched")
    from dataclasses import replace

    from partreduce.commands.design_search import search
    from partreduce.planner.job import Data, Job, effort_of
    from partreduce.planner.lateness import Lateness
    from partreduce.schedulers.synthesis.problem import Limits, Objective
    from partreduce.topo.document.cluster import load_cluster
    from partreduce.topo.document.pilot import load_pilot
    from partreduce.topo.strategies.axes import Codec, Form
    from partreduce.topo.units import parse_number, parse_size, parse_time

    place = load_cluster(cluster)
    hardware = options.hardware_of(
        place, model_bytes=model_bytes, intra=intra_bandwidth, nic=nic_bandwidth, latency=latency, rails=rails,
        compute=compute, slow=slow, jitter=jitter, default_model=options.DEFAULT_MODEL,
    )  # fmt: skip
    job = Job(
        cluster=replace(place, hardware=hardware),
        objective=options.choice(Objective, objective, "--objective"),
        data=options.choice(Data, data, "--data"),
        drift_correction=drift_correction,
        pilot=None if pilot is None else load_pilot(pilot),
        limits=Limits(
            max_communication=options.optional("--max-communication", parse_time, max_communication),
            max_consensus_distance=options.optional("--max-consensus-distance", parse_number, max_consensus_distance),
            max_period=period,
            max_group=max_group,
            max_distinct_phases=max_distinct,
        ),
        form=options.choice_or_any(Form, form, "--form"),
        when=None if when in (options.GAP, options.QUORUM) else options.choice_or_any(Lateness, when, "--when"),
        quorum={options.ANY: None, options.QUORUM: True}.get(when, False),
        gap={options.ANY: None, options.GAP: True}.get(when, False),
        max_queues=options.optional("--max-queues", parse_size, max_queues),
        codec=options.choice_or_any(Codec, codec, "--codec"),
        curvature=curvature,
        fastest=fastest,
        disturbance=None if disturb is None else options.disturbance_of(disturb),
        time_limit=options.optional("--time-limit", parse_time, time_limit),
        effort=options.optional("--effort", effort_of, effort),
        seed=seed,
    )
    facts = None if model is None else _facts_of(model, touched, place)
    search(job, model=facts, name=name, output=output, front=front, plot=plot, as_json=as_json)


def _refuse_options_of_the_planner(context: typer.Context) -> None:
    """With --using nothing is planned, so that what is said about planning would be dropped without a word."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in BUILDING and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                "is for the planner, and --using builds an entry as it stands; leave one of them out",
                param_hint=parameter.opts[0],
            )


def _facts_of(model: str, touched: list[str] | None, cluster: "Cluster") -> "ModelFacts":
    from partreduce.commands.simulate_tables import touched_of
    from partreduce.planner.model_tables import read_model

    return read_model(model, cluster, touched=touched_of(touched or [], cluster))


def _build(cluster: str, using: str, param: list[str], name: str | None, output: Path | None, *, as_json: bool) -> None:
    """Build one catalogue entry and write it; without -o the file's content goes to standard output."""
    from dataclasses import replace

    from partreduce.api import design
    from partreduce.console import claim_stdout, console, emit_json
    from partreduce.topo.document.canonical import schedule_sha256
    from partreduce.topo.document.schedule import dump_schedule
    from partreduce.topo.document.writer import schedule_text, write_schedule

    claim_stdout(output, as_json=as_json)
    schedule = design(cluster, using=using, **parameters_of(param))
    if name is not None:
        schedule = replace(schedule, name=name)
        schedule_text(schedule)  # refuses a name that no file can have, also where none is written
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
    }
    if as_json:
        emit_json(facts | ({"output": str(output)} if output else {"schedule": dump_schedule(schedule)}))
        return
    console().print(
        f"{schedule.name} for {schedule.cluster}: {schedule.num_workers} workers, strategy {schedule.strategy.kind}, "
        f"period {facts['period'] or 'none'}, written to {output}"
    )
    console().print(f"Next: partreduce verify {output}", style="dim")


def phases_of(schedule: "Schedule") -> tuple[int | None, int | None]:
    """The period and the number of distinct phases, or None for strategies that have no fixed phases."""
    if schedule.is_mixing:
        return schedule.period, schedule.num_distinct_phases()
    return None, None


def parameters_of(entries: list[str]) -> dict[str, object]:
    """`every=4` → {"every": "4"}; the entry itself reads the values.

    Raises:
        InputError: an entry without `=`, or a key given twice.
    """
    from partreduce.topo.errors import InputError

    values: dict[str, object] = {}
    for entry in entries:
        key, sign, value = entry.partition("=")
        key = key.strip().replace("-", "_")
        if not sign or not key.isidentifier():
            raise InputError(f"--param {entry!r}: write KEY=VALUE, such as every=4")
        if key in values:
            raise InputError(f"--param {entry!r}: {key} is given twice")
        values[key] = value.strip()
    return values
