"""The searching half of `preduce design`: options to a planner's job, and the plan to tables, files and pictures."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from enum import StrEnum
    from pathlib import Path

    from preduce.planner import Job, Option, Plan

    E = TypeVar("E", bound=StrEnum)

DEFAULT_MODEL = "100MB"
MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line was given, still as text."""

    cluster: str
    name: str | None
    model_bytes: str | None
    intra: str | None
    nic: str | None
    latency: str | None
    rails: int | None
    compute: str | None
    slow: list[str] | None
    jitter: float | None
    disturb: str | None
    objective: str
    data: str
    drift_correction: bool
    max_communication: str | None
    max_disagreement: float | None
    period: int
    max_group: int | None
    max_distinct: int | None
    form: str
    time_limit: str
    seed: int


def job_of(request: Request) -> Job:
    """The planner's job.

    Raises:
        InputError: a quantity or a limit that cannot be.
    """
    from preduce.commands.options import compute_of, hardware_of, quantity
    from preduce.planner import Data, Job, Objective
    from preduce.topo.document import load_cluster
    from preduce.topo.strategies.axes import Form
    from preduce.topo.units import parse_time

    cluster = load_cluster(request.cluster)
    known = cluster.hardware is not None and cluster.hardware.model_bytes is not None
    hardware = hardware_of(
        cluster, model_bytes=request.model_bytes or (None if known else DEFAULT_MODEL), intra=request.intra,
        nic=request.nic, latency=request.latency, rails=request.rails, compute=request.compute, slow=request.slow,
        jitter=request.jitter,
    )  # fmt: skip
    budget = request.max_communication
    return Job(
        cluster=replace(cluster, hardware=hardware),
        objective=_choice(Objective, request.objective, "--objective"),
        data=_choice(Data, request.data, "--data"),
        drift_correction=request.drift_correction,
        max_communication=None if budget is None else quantity("--max-communication", parse_time, budget),
        max_disagreement=request.max_disagreement,
        max_period=request.period,
        max_group=request.max_group,
        max_distinct_phases=request.max_distinct,
        form=_choice(Form, request.form, "--form"),
        disturbance=compute_of(hardware, disturbance=request.disturb).disturbance,
        time_limit=quantity("--time-limit", parse_time, request.time_limit),
        seed=request.seed,
    )


def search(request: Request, *, output: Path | None, front: Path | None, plot: Path | None, as_json: bool) -> None:
    """Plan, write what was asked for, and print the front, the pick and why."""
    import json

    from preduce.console import console, emit_json, write_text
    from preduce.planner import plan
    from preduce.report.front import draw_front
    from preduce.topo.document import write_schedule

    job = job_of(request)
    _refuse_lost_work(output, front, plot)
    with _progress(as_json=as_json) as say:
        found = plan(job, progress=say)
    chosen = replace(found.pick.schedule, name=request.name or found.pick.schedule.name)
    if output is not None:
        write_schedule(output, chosen.with_certificate(found.proof.certificate))
    if front is not None:
        write_text(front, json.dumps(found.to_json(), indent=2) + "\n")
    if plot is not None:
        draw_front(found, plot)
    if as_json:
        emit_json(found.to_json() | ({"output": str(output)} if output else {}))
        return
    _print(found, job)
    for path in (output, front, plot):
        if path is not None:
            console().print(f"written to {path}")
    console().print(f"Next: preduce verify {output}" if output else "Next: the same with -o schedule.json", style="dim")


def _refuse_lost_work(output: Path | None, front: Path | None, plot: Path | None) -> None:
    """Refuse what could not be written after the search before it starts."""
    from preduce.report.picture import check_ending
    from preduce.topo.errors import FileProblem

    if plot is not None:
        check_ending(plot)
    for path in (output, front, plot):
        if path is not None and not path.parent.is_dir():
            raise FileProblem(f"{path}: cannot be written: there is no folder {path.parent}; make it first")


def _choice(kind: type[E], text: str, option: str) -> E:
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(kind)}", param_hint=option) from None


@contextmanager
def _progress(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """A line that tells what is being done, on a terminal; nothing for machines."""
    from preduce.console import console

    terminal = console(errors=True)
    if as_json or not terminal.is_terminal:
        yield lambda _: None
        return
    with terminal.status("planning") as status:
        yield status.update


def _shown(found: Plan) -> list[Option]:
    """The pick, the catalogue's options on the front and as many others, evenly, as fit a screen."""
    if len(found.front) <= MAX_ROWS:
        return found.front
    step = (len(found.front) - 1) / (MAX_ROWS - 1)
    kept = {id(found.front[round(i * step)]) for i in range(MAX_ROWS)} | {id(found.pick)}
    return [option for option in found.front if id(option) in kept]


def _print(found: Plan, job: Job) -> None:
    from preduce.console import console, number, seconds, size, table
    from preduce.report.levels import levels

    hardware = job.hardware
    rows = table(
        f"{job.cluster}{levels(hardware, job.cluster.num_nodes)}: {size(hardware.model_bytes or 0)} model, "
        f"{seconds(hardware.compute)} computing per step, {job.data} data",
        "schedule", "period", "comm.", "step", "disagr.", "drift", "steps", "time", "status",
    )  # fmt: skip
    for option in _shown(found):
        rows.add_row(
            option.name, str(option.period), seconds(option.communication), seconds(option.step_seconds),
            number(option.disagreement.value), number(option.drift.value), f"{option.stretch:.3f}",
            seconds(option.time), option.status, style="bold green" if option is found.pick else None,
        )  # fmt: skip
    screen = console()
    screen.print(rows)
    screen.print(
        "Per step: communication, whole step with waiting. steps: predicted steps to a loss over All-Reduce's; time: "
        "step × steps. Nothing on the list beats another in everything.",
        style="dim",
    )
    if len(found.front) > MAX_ROWS:
        screen.print(f"{len(found.front)} schedules are on the front; --front FILE writes all of them.", style="dim")
    screen.print(f"\nPick ({job.objective}): {found.pick.name}, {found.proof.verdict}", style="bold")
    for sentence in found.reasons:
        screen.print(f"  • {sentence}")
    for sentence in found.cautions:
        screen.print(f"  ! {sentence}", style="yellow")
    if found.pick.bound is not None:
        screen.print(
            f"  • its disagreement is {number(found.pick.disagreement.value)}; no schedule of the class "
            f"“{found.pick.bound_class}” that communicates no more has less than {number(found.pick.bound)}"
        )
