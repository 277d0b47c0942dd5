"""Pictures: one palette, one style per group, axes with units, and readable scales."""

import re
from itertools import combinations, pairwise
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace

import numpy as np
import pytest

import partreduce
from helpers.jobs import with_links
from partreduce import PlanRequest, describe
from partreduce.demo.report import draw_curves, draw_operations
from partreduce.planner.plan import plan
from partreduce.report import palette
from partreduce.report.front import NAME, draw_front
from partreduce.report.grid import grid_of
from partreduce.report.palette import logarithmic
from partreduce.report.picture import draw_rounds, draw_schedule, new_figure
from partreduce.report.table import terminal_tables
from partreduce.report.timeline import draw_timeline

ROOT = Path(partreduce.__file__).parent.parent


def lightness_and_color(code, matrix):
    """Return a color under this type of color vision, in CIE L*a*b* (D65)."""
    values = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrix) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


VISION = {
    "normal": np.eye(3),
    # Machado, Oliveira, Fernandes (2009), severity 1.0, on linear RGB.
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}


@pytest.mark.parametrize("vision", VISION)
def test_colors_differ_for_common_color_vision_types(vision):
    seen = [lightness_and_color(color, VISION[vision]) for color in palette.OKABE_ITO]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 12


def test_styles_differ_by_more_than_color():
    styles = [palette.style(index) for index in range(palette.NUM_STYLES)]
    assert len({(style.color, style.hatch) for style in styles}) == palette.NUM_STYLES
    first = styles[: len(palette.OKABE_ITO)]
    assert len({style.marker for style in first}) == len(first), "markers differ without color"
    assert all(a.dash != b.dash for a, b in pairwise(first))


def test_colors_are_defined_in_the_palette_only():
    for path in [*(ROOT / "partreduce").glob("*.py"), *(ROOT / "partreduce" / "report").glob("*.py")]:
        if path.name in {"palette.py", "page.py"}:  # a style sheet of a page is no picture
            continue
        codes = set(re.findall(r'"(#[0-9a-fA-F]{6})"', path.read_text()))
        assert not codes, path


def test_group_has_one_style_in_terminal_pictures_and_reports():
    known: dict[bytes, int] = {}
    names = ("allreduce", "prague-figure-10", "node-then-all")
    grids = [grid_of(partreduce.design("2x4", build=name), known=known) for name in names]
    all_ranks = tuple(range(8))
    looks = [grid.styles[grid.index_of(all_ranks)] for grid in grids if grid.index_of(all_ranks) is not None]
    assert len(looks) == 2
    assert len(set(looks)) == 1, "the global group looks the same in every schedule of a report"
    grid = grids[1]
    node = grid.styles[grid.index_of((0, 1, 2, 3))]
    (table,) = terminal_tables(grid, 200)
    shown = {str(cell.style).split(" on ")[1] for column in table.columns[3:4] for cell in column.cells}
    assert node.color in shown
    cells = [patch.get_facecolor() for patch in draw_schedule(grid).axes[0].patches]
    from matplotlib.colors import to_rgba

    assert to_rgba(node.color) in cells
    events = [
        {"kind": "average", "members": (0, 1, 2, 3), "round": 0, "rank": rank, "start": 0.0, "end": 1.0}
        for rank in range(4)
    ]
    bars = draw_operations([(grid, "run", events)], 8).axes[0].collections
    assert {tuple(bar.get_facecolor()[0]) for bar in bars} == {to_rgba(node.color)}


def test_groups_of_a_phase_have_different_styles():
    grid = grid_of(partreduce.design("16x4", build="node-then-all"))
    first = {grid.styles[index] for index in grid.group[:, 0].tolist()}
    assert len(first) == 16


@pytest.mark.parametrize("values", [[12.6, 20, 50, 110, 5300], [0, 0.01, 1, 80]])
def test_log_axis_keeps_values_apart_despite_an_outlier(values):
    axis = new_figure(6, 4).subplots()
    logarithmic(axis, "x", values)
    low, high = axis.transData.transform([(axis.get_xlim()[0], 1), (axis.get_xlim()[1], 1)])[:, 0]
    places = [(axis.transData.transform((value, 1))[0] - low) / (high - low) for value in values]
    assert all(0 <= place <= 1 for place in places)
    assert places[-2] - places[0] > 0.3, "linear axes would leave 2 % to all values but the last"
    texts = [axis.xaxis.get_major_formatter()(tick, 0) for tick in axis.xaxis.get_major_locator()()]
    assert len(texts) >= 3
    assert not any("{" in text or "e+" in text for text in texts)


HARDWARE = with_links(10e9, 5e9, model_bytes=100_000_000, compute=0.05)


@pytest.fixture(scope="module")
def pictures():
    schedule = partreduce.design("2x4", build="prague-figure-10")
    result = SimpleNamespace(
        name="run", steps=np.array([10, 20]), seconds=np.array([[1.0, 2.0]]), loss=np.array([2.0, 1.0]),
        reached=lambda target: (20, np.array([2.0])),
    )  # fmt: skip
    return {
        "curves": draw_curves([result], 1.0),
        "schedule": draw_schedule(grid_of(schedule)),
        "timeline": draw_timeline(partreduce.simulate(schedule, HARDWARE, num_rounds=4), "t"),
    }


def test_every_axis_has_a_label_and_times_have_units(pictures):
    for name, figure in pictures.items():
        for axis in figure.axes:
            assert axis.get_xlabel() or not axis.axison, name
        words = " ".join(axis.get_xlabel() + axis.get_ylabel() for axis in figure.axes)
        if name == "timeline":
            assert "ms)" in words or "(s)" in words


def test_series_and_colors_have_a_legend(pictures):
    assert [text.get_text() for text in pictures["curves"].legends[0].get_texts()] == ["run", "target: loss 1"]
    timeline = pictures["timeline"].legends[0].get_texts()
    assert [text.get_text() for text in timeline] == ["compute", "group operation", "wait"]
    graph = draw_rounds(partreduce.design("4x2", build="ring"))
    assert [text.get_text() for text in graph.legends[0].get_texts()] == [f"node {node}" for node in range(4)]


def test_no_text_exceeds_its_picture(pictures):
    for name, figure in pictures.items():
        figure.canvas.draw()
        width, height = figure.bbox.width, figure.bbox.height
        for text in [text for axis in figure.axes for text in (axis.xaxis.label, axis.yaxis.label, axis.title)]:
            box = text.get_window_extent()
            assert not text.get_text() or (
                box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            ), (name, text.get_text())


def test_labels_of_the_front_do_not_overlap():
    job = PlanRequest(cluster=partreduce.Cluster.regular(2, 4, hardware=HARDWARE), effort=0.1)
    planned = plan(job)
    figure = draw_front(planned, job.data)
    figure.canvas.draw()
    axis = figure.axes[0]
    names = {text.get_text(): text.get_window_extent() for text in axis.texts if text.get_text()}
    assert fill(describe(planned.recommendation.schedule), NAME) in names
    assert len(names) >= 3
    assert not any(one.overlaps(other) for one, other in combinations(names.values(), 2))
    points = np.concatenate([axis.transData.transform(line.get_xydata()) for line in axis.lines])
    assert not any(box.contains(*point) for box in names.values() for point in points)
    assert all(axis.bbox.containsx(box.x0) and axis.bbox.containsx(box.x1) for box in names.values())
