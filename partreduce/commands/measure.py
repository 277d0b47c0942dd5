"""`partreduce measure`: measure the cluster that a job runs on, or what averaging less often costs your own job."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partreduce.commands import cluster_options, options
from partreduce.console import claim_stdout, console, emit_json, number, seconds
from partreduce.planner.calibration import calibrate, steps_model
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.plan import RunOff
from partreduce.planner.steps_model import FITTED
from partreduce.report.table import Column, Table
from partreduce.runtime.environment import LOCAL_RANK, RANK
from partreduce.topo.document.cluster import dump_cluster, load_cluster, write_cluster
from partreduce.topo.document.pilot import dump_pilot, write_pilot
from partreduce.topo.document.writer import check_without_place
from partreduce.topo.errors import InputError, PartreduceError
from partreduce.topo.extras import require
from partreduce.topo.hardware import Hardware
from partreduce.topo.pilot import Pilot, Price
from partreduce.topo.units import parse_size
from partreduce.user_function import file_and_name, function_of, one_line

if TYPE_CHECKING:
    from partreduce.runtime.profile import Profile

OF_CLUSTER = ("model_bytes", "step", "repetitions")
OF_JOB = ("steps", "seeds", "warm_up", "data")
DEFAULT_SIZE = "8MB"
"""The size of the payload in measurements if the model's size is not given."""
own = options.panel()


def command(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            help="Makes your job from a seed: returns a partreduce.PilotJob. Left out, the cluster is measured.",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Argument(
            help="Job: its cluster file. Also runs what design would recommend there, against the best other kinds.",
            metavar="CLUSTER",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, own("File to write (default cluster.yaml; of a job pilot.json).", "--output", "-o")
    ] = None,
    workers: Annotated[int | None, own("Start this many local workers.", "--workers", "-n", min=2)] = None,
    nodes: Annotated[int, own("Spread the local workers over this many simulated machines.", min=1)] = 1,
    model_bytes: Annotated[
        str | None, own("Cluster: size of your model, which is moved and noted; 8MB by default.", metavar="SIZE")
    ] = None,
    step: Annotated[
        str | None, own("Cluster: function that runs one training step, to time it.", metavar="FILE.py:NAME")
    ] = None,
    repetitions: Annotated[int, own("Cluster: of every measurement; medians count.", min=1)] = 7,
    steps: Annotated[int, own("Job: steps of every run.", min=24)] = 60,
    seeds: Annotated[int, own("Job: repetitions of every run.", min=2, max=1000)] = 4,
    warm_up: Annotated[int, own("Job: steps of All-Reduce before every run.", min=0)] = 0,
    data: Annotated[Data, own("Job: how samples are spread.")] = Data.SHUFFLED,
    as_json: options.Json = False,
) -> int:
    """Measure a cluster's links and step time, or what rarer and later averages cost your job.

    Without an argument a cluster file is written. With FILE.py:NAME your own job trains for a few dozen steps under a
    few schedules, and a pilot file is written. `partreduce design` reads both files. With CLUSTER the job then also
    trains what design would recommend by this pilot, and the best of every other kind.
    """
    file = output or Path("cluster.yaml" if job is None else "pilot.json")
    if job is None:
        options.check_unused(context, OF_JOB, "is about a job; name its FILE.py:NAME, or leave the option out")
    else:
        options.check_unused(context, OF_CLUSTER, "is about the cluster; leave it out, or FILE.py:NAME")
    claim_stdout(file, as_json=as_json)
    require("torch", purpose="running workers")
    if job is None:
        measure = _cluster_measurement(
            file, model_bytes=model_bytes, step=step, repetitions=repetitions, as_json=as_json
        )
    else:
        measure = _job_measurement(
            file, job, cluster, steps=steps, seeds=seeds, warm_up=warm_up, data=data, as_json=as_json
        )
    if RANK in os.environ:
        measure()
        return 0
    if workers is None:
        usage = " ".join(word for word in (job, cluster, f"-o {file}") if word)
        raise typer.BadParameter(
            "measure runs on all workers: give N here, or start it on the cluster with "
            f"torchrun … -m partreduce measure {usage}",
            param_hint="--workers N",
        )
    options.check_nodes("--nodes", nodes, workers)
    from partreduce.runtime.launcher.launch import launch

    return launch(measure, num_workers=workers, num_nodes=nodes)


def _cluster_measurement(
    output: Path, *, model_bytes: str | None, step: str | None, repetitions: int, as_json: bool
) -> Callable[[], None]:
    """Return the function that every worker calls to measure links, contention and step time.

    Rank 0 writes the cluster file, `output`. `model_bytes` is a size such as `8MB`; `step` names a function that runs
    one training step, as `FILE.py:NAME`.
    """
    size = options.quantity("--model-bytes", parse_size, model_bytes or DEFAULT_SIZE)
    if not size:
        raise InputError(
            f"--model-bytes {model_bytes}: nothing would be moved; write the size of your model, such as 8MB"
        )
    function = None if step is None else _step_of(step)

    def measure() -> None:
        import torch

        from partreduce.runtime.profile import cluster_of, gpu_topology, num_rails, profile, slurm_switches
        from partreduce.runtime.transport.rendezvous import default_world

        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get(LOCAL_RANK, "0")))
        world = default_world(device, timedelta(seconds=120), lambda _store, _rank, _size: None)
        first = world.rank == 0
        measured = profile(
            cluster_of(world), model_bytes=size, step=function, repetitions=repetitions, device=device, world=world,
            progress=console(errors=True).print if first and not as_json else None,
        )  # fmt: skip
        found: dict[str, Any] = {"switches": slurm_switches(world, measured.cluster)}
        if (table := gpu_topology()) is not None:
            found["num_nics"] = num_rails(table)
        if model_bytes is None:  # neither option nor file gives the size of the model
            found["model_bytes"] = None
        if first:
            hardware = replace(measured.cluster.hardware or Hardware(), **found)
            whole = replace(measured, cluster=replace(measured.cluster, hardware=hardware))
            _report_cluster(whole, output, as_json=as_json)

    return measure


def _step_of(text: str) -> Callable[[], None]:
    function = function_of(text, "--step")

    def step() -> None:
        try:
            function()
        except PartreduceError:
            raise
        except Exception as error:
            raise InputError(f"--step {text}: called without arguments, it raised {one_line(error)}") from error

    return step


def _report_cluster(profile: "Profile", output: Path, *, as_json: bool) -> None:
    from partreduce.runtime.profile import slurm_words

    write_cluster(output, profile.cluster)
    notes = _notes(profile)
    within = sum(abs(error) <= 0.3 for error in profile.check_errors)
    if as_json:
        emit_json(
            {
                "cluster": dump_cluster(profile.cluster),
                "output": str(output),
                "slurm": slurm_words(os.environ),
                "notes": notes,
                "checks": [
                    {
                        "groups": [list(group.members) for group in timed.phase],
                        "measured_seconds": timed.median,
                        "predicted_seconds": predicted,
                    }
                    for timed, predicted in profile.checks
                ],
            }
        )
        return
    columns = [Column("groups", justify="left", wraps=True), *map(Column, ("measured", "predicted", "error"))]
    rows = Table("Checked on random phases that were not fitted", columns)
    for (timed, predicted), error in zip(profile.checks, profile.check_errors, strict=True):
        groups = " ".join(str(group) for group in timed.phase)
        rows.add(groups, seconds(timed.median), seconds(predicted), f"{error:+.0%}")
    console().print(rows)
    console().print(f"{within} of {len(profile.checks)} predictions lie within 30% of the measured time.")
    if 2 * within < len(profile.checks):
        console().print("Measure again on an idle machine, with your own --model-bytes and more --repetitions.")
    for note in notes:
        console().print(note, style="yellow")
    console().print(f"written to {output}; next: partreduce design {output}")


def _notes(profile: "Profile") -> list[str]:
    hardware = profile.cluster.hardware
    if hardware is None or not hardware.switches:
        return []
    switches = f"{len(hardware.switches)} switch{'' if len(hardware.switches) == 1 else 'es'}"
    free = "they count as free until hardware.switches in the file states their bandwidth"
    return [f"SLURM names {switches} above the nodes; what the uplinks carry was not measured, so {free}"]


def _job_measurement(
    output: Path, function: str, cluster: str | None, *, steps: int, seeds: int, warm_up: int, data: Data, as_json: bool
) -> Callable[[], None]:
    """Return the function that every worker calls to train the job under several schedules; rank 0 writes the pilot.

    `function` is `FILE.py:NAME`, `seeds` the number of repetitions, `warm_up` the steps of All-Reduce before every run.
    With a `cluster` (`4x4`, or a file) workers also train the schedule that design recommends for it, and the best
    candidate of every other kind.
    """
    file_and_name(function, "FILE.py:NAME")  # one error here instead of one from every worker
    check_without_place(output)
    job = None  # with a cluster: the request of `design CLUSTER` without options
    if cluster is not None:
        job = PlanRequest(cluster=cluster_options.with_defaults(load_cluster(cluster)), data=data)

    def measure() -> None:
        from partreduce.runtime.pilot.run import run_pilot
        from partreduce.runtime.transport.rendezvous import place

        build, (rank, count) = function_of(function, "FILE.py:NAME"), place()
        if job is not None and count > 1 and job.cluster.num_workers != count:
            rule = "schedules of the one do not run on the other: start as many, or leave CLUSTER out"
            raise InputError(f"CLUSTER: has {job.cluster.num_workers} workers and {count} run here; {rule}")
        say = console(errors=True).print if rank == 0 and not as_json else None
        run_off = None if job is None else RunOff(job, steps=steps)
        curves = run_pilot(
            build, steps=steps, seeds=range(seeds), warm_up=warm_up, data=str(data), progress=say,
            then=None if run_off is None else run_off.next,
        )  # fmt: skip
        if rank:
            return
        if run_off is None:
            pilot = calibrate(curves, data=str(data), steps=steps)
        else:
            pilot, names = run_off.pilot(curves), [planned.recommendation.name for planned in run_off.plans]
            if say is not None:
                last = names[-1] if names[-1] != names[0] else "it still is"
                say(f"by the probes {names[0]} would be recommended, after the run-off {last}")
        _report_job(pilot, output, cluster or "CLUSTER", as_json=as_json)

    return measure


def _report_job(pilot: Pilot, output: Path, cluster: str, *, as_json: bool) -> None:
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
    screen, prices = console(), pilot.prices
    screen.print(rows)
    shown: tuple[tuple[str, Price | None, float | None], ...] = (
        ("a unit of consensus distance", prices.consensus_distance, FITTED.a),
        (f"drift^{FITTED.p:.3g}", prices.drift, FITTED.c),
        ("a unit of late distance", prices.late, FITTED.late),
        ("what exceeds a unit of it, times the whole", prices.later, None),
        ("averaging parameters at all", prices.averaging, None),
    )
    for what, price, shipped in shown:
        if price is not None:
            end = "" if shipped is None else f"; shipped {shipped:.4f}"
            screen.print(f"price of {what}: {price.value:.4f} [{price.low:.4f}, {price.high:.4f}]{end}")
    screen.print(f"Schedules that were left out of the fit were predicted within {prices.error:.0%}.")
    screen.print(f"written to {output}; next: partreduce design {cluster} --data {pilot.data} --pilot {output}")
