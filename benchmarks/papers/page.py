"""Writes the papers' page, and each paper's tables and pictures, from benchmarks/results/papers/*.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from benchmarks import kit
from benchmarks.papers.rows import RESULTS, UNITS, read
from partreduce.report.palette import DASHES, INK, OKABE_ITO, PALE, logarithmic, quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.papers.rows import Curve, Results, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper on the page; `headlines` are the (figure, setting) of the rows shown.

    `regime` says how it was measured here, `why` why our figures differ, `picture` which one is shown, `bars` the
    figures to draw. `predicts`: links are measured first, and step times predicted from that. `labs` names runs of
    `make lab` whose cells in benchmarks/results/lab-NAME.json also make rows. If the scripts were removed,
    `answered_at` names the commit that still has them.
    """

    name: str
    title: str
    claim: str
    regime: str
    why: str
    headlines: tuple[tuple[str, str], ...]
    picture: str
    bars: tuple[str, ...] = ()
    predicts: bool = False
    labs: tuple[str, ...] = ()
    answered_at: str = ""


PAPERS = TypeAdapter(tuple[Paper, ...]).validate_python(kit.read_toml(Path(__file__).with_name("papers.toml"))["paper"])

PAGE = RESULTS / "README.md"
BEGIN = "<!-- written by benchmarks/papers/page.py; do not edit below -->"


def write(folder: Path = RESULTS) -> None:
    """Write the page, every paper's tables in `NAME.md`, and the pictures."""
    results = {paper.name: read(paper.name, folder) for paper in PAPERS}
    for paper in PAPERS:
        draw(results[paper.name], folder)
        (folder / f"{paper.name}.md").write_text(tables(paper, results[paper.name]))
    head = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(f"{head}{BEGIN}\n\n{page(results)}")


def page(results: dict[str, Results]) -> str:
    """Return the page: each paper's claim, regime, best known rows, and why ours differ."""
    return "\n".join(short(paper, results[paper.name]) for paper in PAPERS)


def short(paper: Paper, found: Results) -> str:
    rows = {row.key: row for row in found.rows}
    shown = [rows[key] for key in paper.headlines if key in rows]
    parts = [f"## {paper.title}", "", f"**Claim.** {paper.claim}", ""]
    parts += [f"**Measured here.** {paper.regime}", ""]
    lines = [[f"{row.figure}: {row.setting}", paper_words(row), measured_words(row), row.runs] for row in shown]
    parts += [kit.table(["figure", "paper", "measured [low–high]", "runs"], lines)]
    parts += [f"**Why they differ.** {paper.why}", ""]
    parts += [f"![{paper.title}]({paper.picture})", ""]
    parts += [f"[All {len(found.rows)} rows and pictures]({paper.name}.md)", ""]
    return "\n".join(parts)


def tables(paper: Paper, found: Results) -> str:
    """Return all measurements of one paper as a page."""
    parts = [f"{paper.claim} Measured at commit {found.commit}, where a row names no other.", table(found)]
    parts += [f"![{title}]({name})" for title, name in pictures(found).items()]
    if found.notes:
        parts += ["How the runs went:", "\n".join(f"* {note}" for note in found.notes)]
    written = "Written by `python -m benchmarks.papers --write`; do not edit."
    return kit.page(f"{paper.title}: all rows", written, *parts)


def table(found: Results) -> str:
    """Return one paper's rows, figure by figure: paper, measured with its range, runs, why they differ."""
    parts: list[str] = []
    for figure in dict.fromkeys(row.figure for row in found.rows):
        rows = [row for row in found.rows if row.figure == figure]
        predicted = any(row.predicted is not None for row in rows)
        columns = ["setting", "paper", "measured [low–high]", *(["predicted"] if predicted else []), "runs"]
        lines = []
        for row in rows:
            commit = f" (at {row.commit})" if row.commit and row.commit != found.commit else ""
            cells = [row.setting + commit, paper_words(row), measured_words(row)]
            if predicted:
                cells.append("" if row.predicted is None else _number(row.predicted, row.unit) + UNITS[row.unit])
            lines.append([*cells, row.runs])
        parts += [f"## {figure}", "", kit.table(columns, lines)]
        if figure in found.why:
            parts += [f"Why they differ: {found.why[figure]}", ""]
    return "\n".join(parts).rstrip()


def paper_words(row: Row) -> str:
    if row.paper is None:
        text = "–"
    elif isinstance(row.paper, tuple):
        text = f"{row.paper[0]:g}–{row.paper[1]:g}{UNITS[row.unit]}"
    else:
        text = f"{row.paper:g}{UNITS[row.unit]}"
    return text if row.aim is None else f"{text} (aim: {row.aim:g})"


def measured_words(row: Row) -> str:
    """Format the median with its range, which a single run lacks."""
    about = "≈ " if row.derived else ""
    low, high = _number(row.low, row.unit), _number(row.high, row.unit)
    ends = f" [{low}–{high}]" if low != high else ""
    return f"{about}{_number(row.measured, row.unit)}{UNITS[row.unit]}{ends}"


def _number(value: float, unit: str) -> str:
    """Format a number with three significant digits, four for a loss; whole numbers from 100 on."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.4g}" if unit == "loss" else f"{value:.3g}"


LINES = tuple(zip([OKABE_ITO[place] for place in (5, 1, 2, 3, 6, 0)], (*DASHES, *DASHES), strict=False))
"""Colors and dashes of at most six lines; yellow is too pale for a line."""
MOST_LINES = len(LINES)
WIDTH = 5.6
"""Inches of every picture; its text is readable on a phone, where a picture is 4 inches wide."""
DPI = 120


def draw(found: Results, folder: Path = RESULTS) -> list[Path]:
    made = []
    for title, name in pictures(found).items():
        if title in found.bars:
            _draw_bars(folder / name, title, [row for row in found.rows if row.figure == title])
        else:
            _draw(folder / name, title, [curve for curve in found.curves if curve.plot == title])
        made.append(folder / name)
    return made


def pictures(found: Results) -> dict[str, str]:
    """Return the file name of each bar figure and plot: `PAPER-TITLE.png`, from the words before the first colon."""
    figures = [figure for figure in found.bars if any(row.figure == figure for row in found.rows)]
    titles = dict.fromkeys([*figures, *(curve.plot for curve in found.curves)])
    return {title: f"{found.paper}-{title.split(':')[0].lower().replace(' ', '-')}.png" for title in titles}


def _draw_bars(path: Path, figure: str, rows: list[Row]) -> None:
    """Draw a panel for each text before the colon in settings, with a mark for predictions."""
    from matplotlib.figure import Figure

    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.setting.partition(": ")[0], []).append(row)
    heights = [0.25 * len(shown) + 0.8 for shown in panels.values()]
    drawn = Figure(figsize=(WIDTH, 0.5 + sum(heights)), layout="constrained")
    axes = drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
    for axis, (where, shown) in zip(axes.flat, panels.items(), strict=True):
        places = list(range(len(shown)))
        values = [row.measured for row in shown]
        ends = [[row.measured - row.low for row in shown], [row.high - row.measured for row in shown]]
        axis.barh(places, values, xerr=ends, color=OKABE_ITO[0], label="measured")
        known = [(place, row.predicted) for place, row in zip(places, shown, strict=True) if row.predicted]
        if known:
            axis.plot([at for _, at in known], [place for place, _ in known], "k|", markersize=9, label="predicted")
        axis.set(yticks=places, yticklabels=[row.setting.partition(": ")[2] for row in shown])
        axis.set_title(where, loc="right")  # a long one continues to the left, over the names
        axis.invert_yaxis()
    axes.flat[-1].set_xlabel(fill(figure, 60), loc="right")
    drawn.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    drawn.savefig(path, dpi=DPI)


def _draw(path: Path, plot: str, curves: list[Curve]) -> None:
    """Draw the whole run; below, the same over steps if they are known, else its last third."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 7.5), layout="constrained")
    axes = figure.subplots(2, 1)
    figure.suptitle(fill(plot, 60), fontsize=11)
    by_steps = all(curve.steps for curve in curves)
    shown, left_out = _choose_runs(curves)
    if left_out:
        missing = fill(f"not drawn, but in the table: {', '.join(left_out)}", 64)
        axes[0].set_title(missing, fontsize=9, color=PALE, loc="left")
    what, over, scales = _labels(plot)
    for axis, label in zip(axes, over if by_steps else over[:1] * 2, strict=True):
        is_below = axis is axes[1]
        drawn = [(curve.steps if by_steps and is_below else curve.at, curve) for curve in shown]
        ends = [(_contestant(curve), at[-1], curve.losses[-1]) for at, curve in drawn]
        for (at, curve), (color, dash) in zip(drawn, LINES, strict=False):
            axis.plot(at, curve.losses, dash, color=color, linewidth=2)
        quiet(axis, across=label, up=what)
        if is_below and not by_steps:
            _show_the_end(axis, shown)
        else:
            for which in scales:
                of = [value for at, curve in drawn for value in (at if which == "x" else curve.losses)]
                logarithmic(axis, which, of)
        _name_ends(axis, [(*end, color) for end, (color, _) in zip(ends, LINES, strict=False)])
    figure.savefig(path, dpi=DPI)


def _name_ends(axis: Any, ends: Sequence[tuple[str, float, float, str]], *, line: float = 0.062) -> None:
    """Write the name of each line next to the axes, at the height of its end or as near as other names allow.

    `ends` are (name, x, y, color) of each line; `line` is the height of a line of text as a share of the axis, which
    must have its final scales and limits. A dot marks the end, so that the thin line to the name does not seem part of
    the curve.
    """
    axis.get_xlim(), axis.get_ylim()  # settles the limits, on which the transformation depends
    to_axes = axis.transData + axis.transAxes.inverted()
    named = sorted((float(to_axes.transform((x, y))[1]), fill(name, 26), (x, y), color) for name, x, y, color in ends)
    needed = [line * (1 + text.count("\n")) for _, text, *_ in named]
    middles: list[float] = []
    for (height, *_), size in zip(named, needed, strict=True):
        lowest = middles[-1] + (needed[len(middles) - 1] + size) / 2 if middles else size / 2
        middles.append(max(height, lowest))
    ceiling = 1.0
    for place in reversed(range(len(middles))):  # what was pushed out above comes down again
        middles[place] = min(middles[place], ceiling - needed[place] / 2)
        ceiling = middles[place] - needed[place] / 2
    for (_, text, point, color), height in zip(named, middles, strict=True):
        # Not clipped by the text's own box, at whose edge a steep one would end next to another's name.
        leader = {"arrowstyle": "-", "color": color, "linewidth": 0.8, "relpos": (0, 0.5), "shrinkB": 0, "patchA": None}
        axis.plot(*point, "o", color=color, markersize=4)
        axis.annotate(
            text, point, (1.04, height), textcoords="axes fraction", va="center", color=INK, arrowprops=leader
        )


def _choose_runs(curves: list[Curve]) -> tuple[list[Curve], list[str]]:
    """Return the run with the median final loss of each of the first six contestants, and the others' names."""
    runs: dict[str, list[Curve]] = {}
    for curve in curves:
        runs.setdefault(_contestant(curve), []).append(curve)
    middle = [sorted(of, key=lambda run: run.losses[-1])[len(of) // 2] for of in runs.values()]
    return middle[:MOST_LINES], [*runs][MOST_LINES:]


def _labels(plot: str) -> tuple[str, tuple[str, ...], str]:
    """Return a plot's label upwards, those along both panels, and its logarithmic axes."""
    if "over skew" in plot:  # Figure 9 of eager-SGD's paper, whose script has gone
        over = ("milliseconds from one worker's call to the next one's", "skew of all over the time of a sum")
        return "times as fast", over, "yx"
    over = ("seconds", "gradients" if "gradients" in plot else "steps") if "seconds" in plot else ("steps", "steps")
    if "accuracy" in plot:
        return "accuracy on held-out samples", over, ""
    return (
        ("loss of samples held out", over, "") if "held out" in plot else ("training loss of the mean model", over, "y")
    )


def _show_the_end(axis: Any, curves: list[Curve]) -> None:
    """Restrict the axes to the last third, where ends can be distinguished."""
    end = max(curve.at[-1] for curve in curves)
    late = [loss for curve in curves for at, loss in zip(curve.at, curve.losses, strict=True) if at >= 2 / 3 * end]
    low, high = min(late), max(late)
    axis.set(xlim=(2 / 3 * end, end), ylim=(low - 0.05 * (high - low), high + 0.05 * (high - low)))


def _contestant(curve: Curve) -> str:
    return curve.name.split(", seed ")[0]
