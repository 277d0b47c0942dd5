"""`partreduce simulate`: run a schedule in virtual time, or compare several."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from partreduce.commands import cluster_options, options
from partreduce.commands.simulate_several import simulate_several
from partreduce.commands.verify import print_sent
from partreduce.console import console, emit_json, seconds, size, write_text
from partreduce.report.picture import format_title, save
from partreduce.report.table import Column, table
from partreduce.report.timeline import draw_timeline, perfetto
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.schedulers.simulator.timeline import AsynchronousMetrics, GapRecord, Timeline
from partreduce.topo.describe import describe
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.metrics import pipeline_metrics
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing.coding import Algorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import bytes_of, communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.tables import RowAccess, exchange_of, steady_seconds
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import in_bytes

own = options.panel()
ALONE = ("trace", "rounds", "seed")
"""The parameters that are valid for a single schedule only."""


def command(
    context: typer.Context,
    schedules: Annotated[list[Path], typer.Argument(help="Schedule files.", metavar="SCHEDULE")],
    *,
    cluster: Annotated[str | None, own("Shorthand such as 4x4, or a cluster file with links and speeds.")] = None,
    settings: options.Settings = None,
    model_bytes: options.ModelBytes = None,
    algorithm: Annotated[
        AllReduceAlgorithm | None, own("How groups average; by default as each file says.")
    ] = None,
    trace: Annotated[Path | None, own("CSV of recorded seconds: a row per step, a column per worker.")] = None,
    rounds: Annotated[int, own("Rounds that every worker runs.", min=1)] = 100,
    seed: Annotated[int, own("Seed of jitter and disturbances.", min=0)] = 0,
    output: Annotated[
        Path | None,
        own(
            "Picture of the timeline, or of several schedules: .png, .svg, .pdf; of one also .json for Perfetto.",
            "--output", "-o",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Predict step times, waiting and communication of a schedule, or compare several.

    Schedules that are decided while the job runs (dynamic_groups, pairwise, iteration_gap, partial) are simulated by
    the protocol that real workers run. Without --model-bytes the communication of one schedule takes no time;
    several are compared at 100MB.
    """
    place, given = None if cluster is None else load_cluster(cluster), cluster_options.cluster_settings(settings)
    if len(schedules) > 1:
        options.check_unused(context, ALONE, "is for one schedule; leave it out, or all but one schedule")
        if "disturb" in given:
            raise typer.BadParameter("disturb is for one schedule; leave it out, or all but one", param_hint="--set")
        place, default = place or load_schedule(schedules[0]).cluster, options.DEFAULT_MODEL
        hardware = cluster_options.hardware_of(place, given, model_bytes=model_bytes, default_model=default)
        simulate_several(
            schedules, place, hardware, algorithm=algorithm, touched=given.get("touched"), output=output,
            as_json=as_json,
        )  # fmt: skip
        return
    hardware = cluster_options.hardware_of(place, given, model_bytes=model_bytes)
    whole = load_schedule(schedules[0])
    loaded = whole.meetings  # outer parameters per worker cost no time
    if place is not None and not place.same_shape(loaded.cluster):
        rule = "name a cluster of that shape, or design a schedule for this one"
        raise InputError(f"--cluster: is {place}, but the schedule is for {loaded.cluster}; {rule}")
    free = hardware.model_bytes is None
    if free:
        hardware = hardware.without_bandwidths()
    times = cluster_options.compute_of(hardware, disturbance=given.get("disturb"), trace=trace)
    shares = cluster_options.touched_of(given["touched"], loaded.cluster) if "touched" in given else None
    timeline = simulate(
        loaded, hardware, compute=times, num_rounds=rounds, seed=seed, algorithm=algorithm, touched=shares
    )
    facts = facts_of(loaded, timeline) | _traffic_facts(loaded, timeline, hardware, algorithm, free=free)
    if timeline.waited is not None:
        facts |= _table_facts(loaded, hardware, times, shares, algorithm=algorithm, free=free)
    elif times.is_fixed and not timeline.free_running and loaded.is_mixing:
        steady = cycle_time(loaded, hardware, times, algorithm=algorithm)
        facts |= {"steady_seconds_per_step": steady.per_step, "critical_workers": list(steady.critical[:16])}
    if output is not None and output.suffix.lower() == ".json":
        write_text(output, perfetto(timeline, loaded.cluster))
    elif output is not None:
        title, worker_steps = format_title(loaded.name, describe(loaded), 10), loaded.worker_steps().tolist()
        save(draw_timeline(timeline, title, worker_steps=worker_steps), output)
    if as_json:
        emit_json(facts | workers_of(timeline))
    else:
        _print(whole, timeline, facts, output, algorithm=algorithm, free=free)


def _traffic_facts(
    schedule: Schedule, timeline: Timeline, hardware: Hardware, algorithm: Algorithm, *, free: bool
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    observed = timeline.observed
    if observed is not None and observed.gaps is not None:
        facts |= _gap_facts(schedule, observed.gaps)
    elif observed is not None and observed.quorum is not None:
        facts |= _quorum_facts(schedule, observed)
    elif schedule.is_mixing and not free:
        sent = communication(schedule, hardware, algorithm=algorithm)
        facts |= {
            "communication_seconds_per_step": sent.per_step,
            "nic_bytes_per_step": sent.nic_bytes_per_step,
            "peak_nic_bytes": sent.peak_nic_bytes,
        }
        if algorithm is None:  # the proved number is about the file's algorithm
            facts["sent_bytes"] = in_bytes(ScheduleFacts(schedule).numbers("sent-bytes"), bytes_of(hardware, None))
    if observed is not None and not free and not (observed.gaps is None and observed.quorum is None):
        facts["nic_bytes_per_step"] = float(observed.nic_bytes.max()) / timeline.num_rounds
    return facts


def facts_of(schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    """Return the summary of a timeline as JSON-able data: seconds per step, and shares as means over all workers.

    The time per step is the mean over the last whole periods, at most three quarters of the rounds: phases cost
    differently, and a part of a period would count some phases more often.
    """
    counted = timeline.num_rounds - timeline.num_rounds // 4
    if schedule.is_mixing:
        counted = counted // schedule.period * schedule.period or counted
    warm_up = timeline.num_rounds - counted
    # Operations that a pipeline has in flight at the end still take time.
    passed = float(np.maximum(timeline.finish[-1], timeline.communicate_end[-1]).mean()) or 1.0
    strategy = schedule.strategy
    return {
        "name": schedule.name,
        "sync": strategy.sync.word,
        "codec": str(strategy.transport.codec),
        "gradient_buckets": str(strategy.transport.gradient_buckets),
        "num_workers": schedule.num_workers,
        "rounds": timeline.num_rounds,
        "seconds_per_step": timeline.per_step(warm_up=warm_up),
        "makespan_seconds": timeline.makespan,
        "share_computing": float(timeline.computing().mean()) / passed,
        "share_communicating": float(timeline.communicating().mean()) / passed,
        "share_waiting": float(timeline.waiting().mean()) / passed,
        **({} if (late := pipeline_metrics(schedule)) is None else {"pipeline": late.to_json()}),
    }


def _table_facts(
    schedule: Schedule,
    hardware: Hardware,
    times: ComputeTimes,
    touched: dict[str, RowAccess] | None,
    *,
    algorithm: Algorithm,
    free: bool,
) -> dict[str, Any]:
    """Return, for the JSON output, the seconds and bytes that a step takes to exchange rows of embedding tables.

    With fixed compute times (`times`) the result has the exact time of a step, too. `touched` has the rows that a step
    looks up, by table. `free` means that the model's size is unknown; seconds and bytes are then left out.
    """
    exchange = exchange_of(schedule, hardware, touched)
    assert exchange is not None, "asked only where there are tables"
    routes = schedule.routes.tables
    facts: dict[str, Any] = {
        "tables": {
            "ways": {route.parameter: str(route.way) for route in routes},
            "codecs": {route.parameter: str(route.codec) for route in routes},
        }
    }
    if times.is_fixed:
        slowest = times.fixed(schedule.num_workers)
        facts["steady_seconds_per_step"] = steady_seconds(schedule, hardware, times, exchange, algorithm=algorithm)
        facts["critical_workers"] = [int(worker) for worker in (slowest == slowest.max()).nonzero()[0][:16]]
    if free:
        return facts
    sent = communication(schedule, hardware, algorithm=algorithm)
    facts["tables"] |= {"seconds_per_step": exchange.seconds, "nic_bytes_per_step": exchange.nic_bytes}
    return facts | {
        "communication_seconds_per_step": sent.per_step + exchange.seconds,
        "nic_bytes_per_step": sent.nic_bytes_per_step + exchange.nic_bytes,
    }


def _print_tables(tables: dict[str, Any]) -> None:
    codecs = {name: f" in {codec}" for name, codec in tables["codecs"].items() if codec != "none"}
    ways = ", ".join(f"{escape(name)} {way}{codecs.get(name, '')}" for name, way in tables["ways"].items())
    took = "takes no time here: give --model-bytes and --set touched"
    if "seconds_per_step" in tables:
        took = f"takes {seconds(tables['seconds_per_step'])} and {size(tables['nic_bytes_per_step'])} out of a node"
    console().print(f"tables: {ways}; their exchange in every step {took}")


def _gap_facts(schedule: Schedule, record: GapRecord) -> dict[str, Any]:
    """Return statistics of Hop's workers in a run, under the key "gaps".

    They are gaps in steps, with the proved bound over an edge (None: no bound), the longest queue, and the shares of
    skipped steps and of waiting, over all workers.
    """
    over_edges, shares = ScheduleFacts(schedule).numbers("gap").get("bound", -1), record.distribution()
    passed = float(record.finish[-1].sum()) or 1.0
    return {
        "gaps": {
            "mean_over_edges": float((shares * range(len(shares))).sum()),
            "largest_over_edges": record.largest_over_edges(),
            "proved_over_edges": None if over_edges < 0 else over_edges,
            "largest_over_pairs": record.largest_over_pairs(),
            "share_skipped": float(record.skipped.sum()) / record.finish.size,
            "longest_queue": int(record.fill.max()),
            "share_waiting_for_updates": float(record.for_updates.sum()) / passed,
            "share_waiting_for_tokens": float(record.for_tokens.sum()) / passed,
        }
    }


def _quorum_facts(schedule: Schedule, observed: AsynchronousMetrics) -> dict[str, Any]:
    """Return the results of partial all-reduce under the key "quorum".

    They are rounds and gradients per second, workers that contribute to a round, and ages of gradients, with the proved
    bound. Rates, contributors and shares leave out the first quarter of the rounds.
    """
    record, setting = observed.quorum, schedule.strategy.sync
    assert record is not None, "asked before"
    assert isinstance(setting, PartialAllReduce), "nothing else records rounds"
    warm_up = len(record.gradients) // 4
    even = record.gradients[warm_up:].sum() / schedule.num_workers or 1.0
    rounds, gradients = record.rates(warm_up=warm_up)
    return {
        "quorum": {
            "rounds_per_second": rounds,
            "gradients_per_second": gradients,
            "needed": setting.needed(schedule.num_workers) if schedule.strategy.averages_everyone else None,
            "mean_active": float(record.active[warm_up:].mean()),
            "least_share": float(record.gradients[warm_up:].sum(axis=0).min() / even),
            "largest_age": observed.largest_age,
            "proved_age": setting.bound,
            "mean_age": observed.mean_age,
            "shares_of_ages": record.shares_of_ages(warm_up=warm_up).tolist(),
        }
    }


def workers_of(timeline: Timeline) -> dict[str, Any]:
    """Return the computing, communicating and waiting seconds of each worker, as a dict with the key "workers".

    The dict is empty beyond 4096 workers.
    """
    if timeline.finish.shape[1] > 4096:
        return {}
    columns = {
        "worker": range(timeline.finish.shape[1]),
        "computing_seconds": timeline.computing().tolist(),
        "communicating_seconds": timeline.communicating().tolist(),
        "waiting_seconds": timeline.waiting().tolist(),
    }
    return {"workers": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _print(
    schedule: Schedule,
    timeline: Timeline,
    facts: dict[str, Any],
    output: Path | None,
    *,
    algorithm: Algorithm,
    free: bool,
) -> None:
    out = console()
    out.print(
        f"[bold]{escape(schedule.name)}[/]: {facts['num_workers']} workers, "
        f"{facts['rounds']} round{'s' * (facts['rounds'] != 1)} {'of the slowest ' * timeline.free_running}"
        f"in {seconds(facts['makespan_seconds'])}, "
        f"[bold]{seconds(facts['seconds_per_step'])}[/] per step"
    )
    is_nested = (algorithm or schedule.strategy.transport.algorithm) is AllReduceAlgorithm.HIERARCHICAL
    out.print(describe(schedule) + "; sums go through nodes first" * is_nested)
    for name, show in (("gaps", _print_gaps), ("quorum", _print_quorum), ("tables", _print_tables)):
        if name in facts:
            show(facts[name])
    if "nic_bytes_per_step" in facts:
        alone = "communication_seconds_per_step" in facts
        took = f"{seconds(facts['communication_seconds_per_step'])} and " if alone else ""
        peak = facts.get("peak_nic_bytes", 0.0)
        most = f", {size(peak)} in the step that sends most" if peak > facts["nic_bytes_per_step"] else ""
        out.print(f"communication: {took}{size(facts['nic_bytes_per_step'])} out of the busiest node per step{most}")
    if "sent_bytes" in facts:
        print_sent(facts["sent_bytes"], schedule)
    if "steady_seconds_per_step" in facts:
        critical = ", ".join(map(str, facts["critical_workers"][:8]))
        out.print(
            f"steady state: {seconds(facts['steady_seconds_per_step'])} per step, exactly; set by worker {critical}"
        )
    if "pipeline" in facts:
        limit, factor = facts["pipeline"]["stability_limit"], facts["pipeline"]["noise_factor"]
        out.print(
            f"Its gradients are {schedule.strategy.sync.lag} late: stable for rate times curvature below {limit:.3g} "
            f"(2 if synchronous), {factor:.3g} times the noise of synchronous steps at a small rate.",
            style="dim",
        )
    if timeline.free_running:
        common = "apply results when they come to them" if "quorum" in facts else "have no common rounds"
        out.print(f"Workers {common}: the time per step is the mean over the steps of all.", style="dim")
    _print_where_time_goes(timeline, facts)
    if free:
        out.print("Communication takes no time here: give --model-bytes to count it.", style="dim")
    if output is not None:
        out.print(f"timeline written to {output}")


def _print_where_time_goes(timeline: Timeline, facts: dict[str, Any]) -> None:
    """Print a row of times per worker, and their mean; of more than 16 workers those that wait longest."""
    listed = table(
        "Where the time goes",
        "worker",
        "computing",
        "updates" if "gaps" in facts else "group operations",
        "waiting",
        Column("waiting share", drop=1),
    )
    parts = (timeline.computing(), timeline.communicating(), timeline.waiting())
    count = timeline.finish.shape[1]
    order = range(count) if count <= 16 else sorted(range(count), key=lambda w: -float(parts[2][w]))[:16]
    for rank in order:
        mine = [float(part[rank]) for part in parts]
        share = mine[2] / (float(timeline.finish[-1, rank]) or 1.0)
        listed.add(str(rank), *map(seconds, mine), f"{share:.0%}")
    mean = [float(part.mean()) for part in parts]
    listed.add("mean", *map(seconds, mean), f"{facts['share_waiting']:.0%}", style="bold")
    console().print(listed)
    if count > 16:
        console().print(f"Shown: the 16 of {count} workers that wait longest.", style="dim")


def _print_quorum(found: dict[str, Any]) -> None:
    """Print the rates and ages of a quorum's gradients; `found` is the result of `_quorum_facts`."""
    proved = "" if found["proved_age"] is None else f" of {found['proved_age']}"
    console().print(
        f"quorum: {found['rounds_per_second']:.4g} rounds and {found['gradients_per_second']:.4g} gradients a second, "
        f"{found['mean_active']:.3g} workers active in a round; gradients are {found['mean_age']:.2g} rounds late, at "
        f"most {found['largest_age']:g}{proved}; every worker contributes at least {found['least_share']:.2g} of "
        "an even share"
    )


def _print_gaps(gaps: dict[str, Any]) -> None:
    bound = gaps["proved_over_edges"]
    most = f"{gaps['largest_over_edges']}" + ("" if bound is None else f" of at most {bound}")
    out = console()
    out.print(
        f"gap over an edge: {gaps['mean_over_edges']:.2f} steps on average, [bold]{most}[/]; between any two workers "
        f"{gaps['largest_over_pairs']}; longest queue {gaps['longest_queue']}"
    )
    out.print(
        f"of all steps {gaps['share_skipped']:.1%} skipped; of all time waiting for updates "
        f"{gaps['share_waiting_for_updates']:.0%}, for tokens {gaps['share_waiting_for_tokens']:.0%}"
    )
