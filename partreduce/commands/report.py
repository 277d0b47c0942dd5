"""`partreduce report`: compare traced runs side by side, and decide whether one schedule was faster."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands.options import Json, panel
from partreduce.console import console, emit_json, number, seconds, size
from partreduce.report.table import Column, table
from partreduce.report.traces import read_run, verdict, with_worker_counts

own = panel()


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Trace folders; those of one schedule are repetitions, the first is the base.", metavar="RUN"
        ),
    ],
    *,
    loss: Annotated[float | None, own("Compare seconds to this loss; by default the least that all reached.")] = None,
    as_json: Json = False,
) -> None:
    """Compare traced runs: seconds per step, waiting, bytes, consensus distance, seconds to a loss."""
    if loss is not None and not math.isfinite(loss):
        raise typer.BadParameter(f"expected a finite number, got {loss}", param_hint="--loss")
    read = with_worker_counts([read_run(folder) for folder in runs])
    kinds = {run.schedule: [one for one in read if one.schedule == run.schedule] for run in read}
    if loss is None and all(run.losses for run in read):
        loss = max(min(value for _, value in run.smooth_losses) for run in read)
    base, *others = kinds.values()
    verdicts = [verdict(base, other, loss) for other in others]
    if as_json:
        listed = [
            asdict(run) | {"folder": str(run.folder), "consensus_distance": run.consensus_distance} for run in read
        ]
        emit_json({"runs": listed, "loss": loss, "verdicts": verdicts})
        return
    rows = table(
        "Runs", "run", "schedule", Column("workers", drop=2), Column("steps", drop=1), "a step", "in operations",
        "of it waiting", "bytes a step", "distance", "last loss", "to the loss",
    )  # fmt: skip
    for run in read:
        rows.add(
            str(run.folder), run.schedule, str(run.num_workers), str(run.steps), seconds(run.step_seconds),
            seconds(run.operation_seconds), seconds(run.waiting_seconds), size(run.nic_bytes),
            number(run.consensus_distance), number(run.smooth_losses[-1][1] if run.losses else None),
            seconds(run.seconds_to(loss) if loss is not None and run.losses else None),
        )  # fmt: skip
    console().print(rows)
    for name, words in {run.schedule: run.words for run in read if run.words}.items():
        console().print(f"{name}: {words}")
    console().print(
        "a step: of the fastest worker, without evaluations. In operations, and waiting for their last member: mean "
        "over workers. Bytes out of all nodes. distance: mean squared distance to the mean model, at "
        "each mean_model()." + ("" if loss is None else f" The loss is {loss:.4g}; losses are smoothed."),
        style="dim",
    )
    for line in verdicts:
        console().print(f"{line}.", style="bold")
    if not others:
        console().print("One schedule alone: name a run of another one, too, for a verdict.")
    if not all(run.losses for run in read):
        console().print("Not every run logged a loss: call optimizer.log(loss=…) in the training loop.", style="dim")
