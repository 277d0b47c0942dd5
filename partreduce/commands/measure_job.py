"""`partreduce measure FILE.py:NAME`: a few dozen steps of your own job under a few schedules, and their prices."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from partreduce.commands import cluster_options, options
from partreduce.console import console, emit_json, number
from partreduce.planner.calibration import calibrate, steps_model
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.plan import RunOff
from partreduce.planner.steps_model import FITTED
from partreduce.report.table import Column, Table
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.pilot import dump_pilot, write_pilot
from partreduce.topo.document.writer import check_without_place
from partreduce.topo.errors import InputError
from partreduce.topo.pilot import Pilot, Price
from partreduce.user_function import file_and_name, function_of


def job_measurement(
    output: Path, function: str, cluster: str | None, *, steps: int, seeds: int, warm_up: int, data: Data, as_json: bool
) -> Callable[[], None]:
    """What every worker calls to train the job under a few schedules; rank 0 writes the pilot file.

    With a `cluster` file there is a run-off of what would be recommended there.

    Raises:
        DocumentError: a cluster file that breaks its format.
        FileError: there is no folder for the output.
    """
    file_and_name(function, "FILE.py:NAME")  # refused once, and not by every worker
    check_without_place(output)
    job = None if cluster is None else _planned_for(cluster, data)

    def measure() -> None:
        build = function_of(function, "FILE.py:NAME")
        pilot = _run_on_workers(build, str(data), job, steps=steps, seeds=seeds, warm_up=warm_up, quiet=as_json)
        if pilot is not None:
            _report(pilot, output, cluster or "CLUSTER", as_json=as_json)

    return measure


def _planned_for(cluster: str, data: Data) -> PlanRequest:
    """What `design CLUSTER` plans, without any other option."""
    place = load_cluster(cluster)
    hardware = cluster_options.hardware_of(place, {}, model_bytes=None, default_model=options.DEFAULT_MODEL)
    return PlanRequest(cluster=replace(place, hardware=hardware), data=data)


def _run_on_workers(
    build: Callable[..., Any], data: str, job: PlanRequest | None, *, steps: int, seeds: int, warm_up: int, quiet: bool
) -> Pilot | None:
    """Runs on every worker; the pilot on rank 0, None elsewhere."""
    from partreduce.runtime.pilot.run import run_pilot
    from partreduce.runtime.transport.rendezvous import place

    rank, count = place()
    if job is not None and count > 1 and job.cluster.num_workers != count:
        raise InputError(
            f"CLUSTER: has {job.cluster.num_workers} workers and {count} run here; schedules of the one do not run on "
            "the other: start as many, or leave CLUSTER out"
        )
    say: Callable[[str], None] | None = None
    if rank == 0 and not quiet:
        say = console(errors=True).print
    run_off = None if job is None else RunOff(job, steps=steps)
    curves = run_pilot(
        build, steps=steps, seeds=range(seeds), warm_up=warm_up, data=data, progress=say,
        then=None if run_off is None else run_off.next,
    )  # fmt: skip
    if rank:
        return None
    if run_off is None:
        return calibrate(curves, data=data, steps=steps)
    if say is not None:
        first, last = (planned.recommendation.name for planned in (run_off.plans[0], run_off.plans[-1]))
        say(f"by the probes {first} would be recommended, after the run-off {last if last != first else 'it still is'}")
    return run_off.pilot(curves)


def _report(pilot: Pilot, output: Path, cluster: str, *, as_json: bool) -> None:
    write_pilot(output, pilot)
    if as_json:
        emit_json(dump_pilot(pilot))
        return
    model = steps_model(pilot)
    columns = [Column("schedule", justify="left"), *map(Column, ("distance", "drift", "measured", "lowest", "highest"))]
    rows = Table("Steps over All-Reduce's", [*columns, Column("by these prices"), Column("shipped model")])
    for probe in pilot.probes:
        metrics = (probe.consensus_distance, probe.drift)
        rows.add(
            probe.schedule, *map(number, metrics), f"{probe.steps_ratio:.3f}", f"{min(probe.steps_ratios):.3f}",
            f"{max(probe.steps_ratios):.3f}", f"{model.steps_ratio(*metrics, late=probe.late):.3f}",
            f"{FITTED.steps_ratio(*metrics, late=probe.late):.3f}",
        )  # fmt: skip
    screen = console()
    screen.print(rows)
    prices = pilot.prices
    screen.print(
        f"price of a unit of consensus distance: {_format_price(prices.consensus_distance)}; shipped {FITTED.a:.4f}"
    )
    if prices.drift is not None:
        screen.print(f"price of drift^{FITTED.p:.3g}: {_format_price(prices.drift)}; shipped {FITTED.c:.4f}")
    screen.print(f"price of a unit of late distance: {_format_price(prices.late)}; shipped {FITTED.late:.4f}")
    if prices.later is not None:
        screen.print(f"price of what exceeds a unit of it, times the whole: {_format_price(prices.later)}")
    if prices.averaging is not None:
        screen.print(f"price of averaging parameters at all: {_format_price(prices.averaging)}")
    screen.print(f"Schedules that were left out of the fit were predicted within {prices.error:.0%}.")
    screen.print(f"written to {output}; next: partreduce design {cluster} --data {pilot.data} --pilot {output}")


def _format_price(price: Price) -> str:
    return f"{price.value:.4f} [{price.low:.4f}, {price.high:.4f}]"
