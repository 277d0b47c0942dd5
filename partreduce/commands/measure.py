"""`partreduce measure`: the cluster that a job runs on, or what averaging less costs a job of yours."""

from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands import options
from partreduce.commands.measure_cluster import cluster_measurement
from partreduce.commands.measure_job import job_measurement
from partreduce.console import claim_stdout
from partreduce.planner.job import Data
from partreduce.topo.extras import require

OF_CLUSTER = ("model_bytes", "step", "repetitions")
OF_JOB = ("steps", "seeds", "warm_up", "data")


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
        Path | None,
        typer.Option("--output", "-o", help="File to write (default cluster.yaml; of a job pilot.json)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-n", help="Start this many local workers.", min=2)
    ] = None,
    nodes: Annotated[int, typer.Option(help="Spread the local workers over this many pretended machines.", min=1)] = 1,
    model_bytes: Annotated[
        str | None,
        typer.Option(help="Cluster: size of your model, which is moved and noted; 8MB by default.", metavar="SIZE"),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(help="Cluster: function that runs one training step, to time it.", metavar="FILE.py:NAME"),
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Cluster: of every measurement; medians count.", min=1)] = 7,
    steps: Annotated[int, typer.Option(help="Job: steps of every run.", min=24)] = 60,
    seeds: Annotated[int, typer.Option(help="Job: repetitions of every run.", min=2, max=1000)] = 4,
    warm_up: Annotated[int, typer.Option(help="Job: steps of All-Reduce before every run.", min=0)] = 0,
    data: Annotated[Data, typer.Option(help="Job: how samples are spread.")] = Data.SHUFFLED,
    as_json: options.Json = False,
) -> int:
    """Measure a cluster's links and step time, or what rarer and later averages cost your job.

    Without an argument a cluster file is written. With FILE.py:NAME your own job trains for a few dozen steps under a
    few schedules, and a pilot file is written. Both go to design. Given CLUSTER as well, it first trains what design
    would recommend by this pilot against the best of every other kind.
    """
    file = output or Path("cluster.yaml" if job is None else "pilot.json")
    if job is None:
        options.check_unused(context, OF_JOB, "is about a job; name its FILE.py:NAME, or leave the option out")
    else:
        options.check_unused(context, OF_CLUSTER, "is about the cluster; leave it out, or FILE.py:NAME")
    claim_stdout(file, as_json=as_json)
    require("torch", purpose="running workers")
    if job is None:
        measure = cluster_measurement(
            file, model_bytes=model_bytes, step=step, repetitions=repetitions, as_json=as_json
        )
    else:
        measure = job_measurement(
            file, job, cluster, steps=steps, seeds=seeds, warm_up=warm_up, data=data, as_json=as_json
        )
    usage = " ".join(word for word in (job, cluster, f"-o {file}") if word)
    return options.on_every_worker(measure, usage, workers=workers, nodes=nodes)
