"""`benchmarks.gpu` compares the cells of a stage and sends them to processes."""

import pickle
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchmarks.gpu.stages import _compare_all
from helpers.device.cells import BY_NAME, compare, run_cell
from helpers.device.cells import CELLS as CELLS_OF_ALL
from helpers.device.table_cells import TABLE_CELLS
from helpers.device.table_cells import compare as compare_tables

CELLS = [SimpleNamespace(name=f"cell {number}") for number in range(5)]
PLACES = ("", "fill")


def fake_difference(cell, _kind, *, place, seconds):
    """Two of five cells are wrong."""
    assert (seconds > 0) == (place != "")
    if cell.name == "cell 1":
        raise ValueError("too late")
    return 0.5 if (cell.name, place) == ("cell 3", "fill") else 0.0


def test_comparison_covers_all_places_and_names_failing_cells():
    good = [cell for cell in CELLS if cell.name not in ("cell 1", "cell 3")]
    found = _compare_all(good, PLACES, fake_difference, lambda _: 0.0)
    assert found == {"cells": 6, "largest relative difference": 0.0}
    with pytest.raises(AssertionError) as problem:
        _compare_all(CELLS, PLACES, fake_difference, lambda _: 0.0)
    text = str(problem.value)
    assert text.startswith("3 of 10: "), text
    assert "cell 1: ValueError: too late" in text
    assert "cell 3, late fill: 0.5 from the CPU" in text


def test_cells_and_comparisons_can_be_pickled():
    for cells, comparison in ((CELLS_OF_ALL, compare), (TABLE_CELLS, compare_tables)):
        assert pickle.loads(pickle.dumps(cells)) == cells
        assert pickle.loads(pickle.dumps(partial(comparison, seconds=0.1))).keywords["seconds"] == 0.1


def test_delay_that_affects_no_operation_is_rejected():
    with pytest.raises(AssertionError, match="static: nothing is late at nowhere"):
        run_cell(BY_NAME["static"], "simulated", place="nowhere", seconds=0.001)
