"""The demonstration's report: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from partreduce.console import number
from partreduce.demo.stages import SCRIPT, TARGET, THIN_WORDS, Candidate, Result, conclusion, span
from partreduce.report import page
from partreduce.report.grid import Grid, grid_of
from partreduce.report.palette import EDGE, GRAY, INK, PALE, logarithmic, quiet, style
from partreduce.report.picture import draw_schedule, legend_below, new_figure
from partreduce.report.traces import operations
from partreduce.topo.metrics import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from partreduce.demo.train import Plan


def draw_curves(measured: Sequence[Result], target: float) -> Figure:
    """Draw each schedule's loss over steps (left) and seconds (right, a line per repetition), with the target loss."""
    figure = new_figure(11, 4.4)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, word in zip(axes, ("steps", "seconds"), strict=True):
        for index, result in enumerate(measured):
            look = style(index)
            turns = [result.steps] if word == "steps" else list(result.seconds)
            wide = 2.0 if len(turns) == 1 else 1.2
            for turn, across in enumerate(turns):
                name = result.name if turn == 0 else None
                axis.plot(across, result.loss, look.dash, color=look.color, linewidth=wide, label=name)
            reached = result.reached(target)
            if reached is not None:
                places = [reached[0]] if word == "steps" else list(reached[1])
                losses = [*result.loss[result.steps == reached[0]]] * len(places)
                dots = {"ms": 7, "color": look.color, "mec": "black", "mew": 0.8, "zorder": 3}
                axis.plot(places, losses, look.marker, linestyle="none", **dots)
        axis.axhline(target, color=INK, linewidth=1, linestyle=":", label=f"target: loss {target:g}")
        quiet(axis, across="training steps" if word == "steps" else "training time (s)")
        logarithmic(axis, "y", [*(loss for result in measured for loss in result.loss.tolist()), target])
        axis.set_xlim(left=0)
    axes[0].set_ylabel("training loss of the mean model", color=INK)
    legend_below(figure, axes[0], columns=4)
    return figure


def draw_operations(
    runs: Sequence[tuple[Grid, str, list[dict[str, Any]]]], num_workers: int, *, rounds: int = 10
) -> Figure:
    """Draw each worker's group operations, waiting included, in `rounds` rounds from the middle of each run.

    There is one panel per run, given as (grid, name, recorded operations). A group has its color in the schedule's
    grid, or gray if the grid does not show it. The first round is a multiple of `rounds`: if workers evaluate every
    `rounds` rounds, no evaluation is in the picture.
    """
    figure = new_figure(11, len(runs) * (0.7 + 0.17 * num_workers))
    panels = figure.subplots(len(runs), 1, squeeze=False).flat
    widths = []
    for axis, (grid, name, events) in zip(panels, runs, strict=True):
        kept = [event for event in events if event["kind"] in {"average", "gradient average"}]
        middle = max((event["round"] for event in kept), default=0) // 2
        first = middle // rounds * rounds
        shown = [event for event in kept if first <= event["round"] < first + rounds]
        origin = min((event["start"] for event in shown), default=0.0)
        for event in shown:
            index = grid.index_of(event["members"])
            color, hatch = (GRAY, "") if index is None else (grid.styles[index].color, grid.styles[index].hatch)
            span = ((event["start"] - origin) * 1e3, (event["end"] - event["start"]) * 1e3)
            place = (event["rank"] + 0.1, 0.8)
            axis.broken_barh([span], place, facecolors=color, edgecolor=EDGE, linewidth=0.3, hatch=hatch)
        widths.append(max(((event["end"] - origin) * 1e3 for event in shown), default=1.0))
        axis.set_ylim(num_workers, 0)
        axis.set_yticks(
            [rank + 0.5 for rank in range(num_workers)], [str(rank) for rank in range(num_workers)], fontsize=7
        )
        axis.set_title(f"{name}: rounds {first} to {first + rounds - 1}", fontsize=9, loc="left", color=PALE)
        quiet(axis, up="worker", grid=False)
    for axis in figure.axes:
        axis.set_xlim(0, max(widths))
    figure.axes[-1].set_xlabel("time (ms)", color=INK)
    return figure


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
    """Return the table that compares the schedules, one row of texts per schedule, in the columns of `HEADER`."""
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


def write_report(plan: Plan, candidates: list[Candidate], measured: list[Result], verdicts: list[str]) -> str:
    """Return the report as an HTML document; `measured` and `verdicts`, sentences on the proofs, are per candidate."""
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
            "count the group operations that ran. Bytes, steps and losses are the "
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
            ("schedule", "verdict", "contraction", "consensus distance", "drift"),
            [[c.label, words, *_metrics(c)] for c, words in zip(candidates, verdicts, strict=True)],
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
    """Return command lines to try after the demonstration; they use only files of the demonstration's folder."""
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
    return [number(figure.value) for figure in values]
