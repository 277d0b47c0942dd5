"""The demonstration's report: one HTML file with everything in it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from partreduce.demo.curves import draw_curves, draw_operations
from partreduce.demo.results import Result
from partreduce.demo.stages import SCRIPT, TARGET, THIN_WORDS, Candidate, conclusion, span
from partreduce.report import page
from partreduce.report.grid import grid_of
from partreduce.report.picture import draw_schedule
from partreduce.report.traces import operations
from partreduce.topo.metrics import metrics

if TYPE_CHECKING:
    from partreduce.demo.train import Plan

HEADER = (
    "schedule",
    "MB across nodes per step",
    f"steps to loss {TARGET:g}",
    f"MB to loss {TARGET:g}",
    f"seconds to loss {TARGET:g}",
    "last loss",
    "test accuracy",
    "step on a thin link",
)


def table_rows(candidates: list[Candidate], measured: list[Result]) -> list[list[str]]:
    """The comparison as text cells, one row per schedule: what is sure first, then seconds as a range."""
    rows = []
    for candidate, result in zip(candidates, measured, strict=True):
        reached = result.reached(TARGET)
        rows.append(
            [
                candidate.label,
                f"{result.bytes_per_step / 1e6:.2f}",
                "-" if reached is None else str(reached[0]),
                "-" if reached is None else f"{result.bytes_per_step * reached[0] / 1e6:.1f}",
                "-" if reached is None else span(reached[1]),
                f"{result.loss[-1]:.3f}",
                f"{result.accuracy[-1]:.3f}",
                f"{candidate.predicted() * 1e3:.0f} ms",
            ]
        )
    return rows


def write_report(plan: Plan, candidates: list[Candidate], measured: list[Result]) -> str:
    """The report as an HTML document."""
    rows = table_rows(candidates, measured)
    sent = [float(row[3]) if row[3] != "-" else float("inf") for row in rows]
    best = [(sent.index(min(sent)), 3)] if min(sent) < float("inf") else []
    count = candidates[0].schedule.num_workers
    known: dict[bytes, int] = {}
    grids = [grid_of(c.schedule, known=known) for c in candidates]
    runs = [(grid, c.label, operations(plan.place(c.key))) for grid, c in zip(grids, candidates, strict=True)]
    parts = [
        page.paragraph(
            f"{count} worker processes on this machine stand for {plan.num_nodes} nodes of {count // plan.num_nodes} "
            f"workers. They train a small convolutional network on scikit-learn's digits with the same data, the same "
            f"start, batch size {plan.batch} per worker and learning rate {plan.learning_rate:g}; only the schedule "
            "differs."
        ),
        page.heading("What came out"),
        page.rows(HEADER, rows, best=best),
        *[page.paragraph(line) for line in conclusion(measured, TARGET)],
        page.paragraph(
            f"Loss and accuracy are those of the mean model, measured every {plan.every} steps. Bytes across nodes "
            "count the group operations that ran, each as a ring over its members. Bytes, steps and losses are the "
            f"same in each of the {plan.turns} turns. Seconds are not: all nodes share one loopback device and the "
            "cores of this machine with its other work, so they are shown from the fastest turn to the slowest. They "
            f"count training only. The last column is {THIN_WORDS}.",
            note=True,
        ),
        page.picture(
            draw_curves(measured, TARGET),
            "Dots mark the first evaluation at or below the target. On the right each turn is a line.",
        ),
        page.heading("What was known before a worker started"),
        page.rows(
            ("schedule", "holds", "contraction", "consensus distance", "drift"),
            [[c.label, c.promise(), *_metrics(c)] for c in candidates],
        ),
        page.heading("The schedules"),
        *[page.picture(draw_schedule(grid), f"{c.label}: {c.path}") for grid, c in zip(grids, candidates, strict=True)],
        page.heading("What the workers did"),
        page.picture(
            draw_operations(runs, count, rounds=plan.every),
            "Group operations as the workers recorded them, waiting for the others included; colored as in the "
            "schedules above, gaps are computing.",
        ),
        page.paragraph("runs/*/trace.json holds every operation; Perfetto (ui.perfetto.dev) opens it.", note=True),
        page.heading("Next"),
        *[page.command_line(line) for line in next_commands(candidates)],
    ]
    return page.page("partreduce: the same training under three schedules", parts)


def next_commands(candidates: list[Candidate]) -> list[str]:
    """What to type after the demonstration; nothing in it lies outside the demonstration's folder."""
    last = candidates[-1]
    schedule, script = quote(str(last.path)), quote(str(last.path.parent.parent / SCRIPT))
    return [
        f"partreduce verify {schedule} --explain",
        f"partreduce simulate {schedule} --set slow=3:5x",
        f"partreduce run --workers {last.schedule.num_workers} {script} {schedule}",
        "partreduce design 4x4 --build node-then-all -o schedule.json",
    ]


def _metrics(candidate: Candidate) -> list[str]:
    of_schedule = metrics(candidate.schedule)
    values = (of_schedule.contraction, of_schedule.consensus_distance, of_schedule.drift.worker)
    return ["-" if figure.value is None else f"{figure.value:.4g}" for figure in values]
