"""How `benchmarks.gpu` shares a stage's cells among processes, and what it makes of their results."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from benchmarks.gpu.__main__ import merged
from benchmarks.gpu.cells import Cell, run_cell
from benchmarks.gpu.stages import PART, _compared

CELLS = [SimpleNamespace(name=f"cell {number}") for number in range(5)]
PLACES = ("", "fill")


def compared(monkeypatch, part, gap):
    monkeypatch.setenv(PART, part)
    return _compared(CELLS, PLACES, gap, lambda _: 0.0)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_the_parts_of_a_stage_take_each_cell_at_each_place_once(monkeypatch, parts):
    taken = []

    def gap(cell, _kind, *, place, seconds):
        assert (seconds > 0) == (place != "")
        taken.append((cell.name, place))
        return 0.0

    results = [{"outcome": "passed", "details": compared(monkeypatch, f"{part}/{parts}", gap)} for part in range(parts)]
    assert sorted(taken) == sorted((cell.name, place) for cell in CELLS for place in PLACES)
    assert merged(results) == {"outcome": "passed", "details": {"cells": 10, "largest relative difference": 0.0}}


def test_a_cell_that_differs_or_raises_is_named_and_the_others_still_run(monkeypatch):
    def gap(cell, _kind, *, place, seconds):
        if cell.name == "cell 1":
            raise ValueError("too late")
        return 0.5 if (cell.name, place) == ("cell 3", "fill") else 0.0

    with pytest.raises(AssertionError) as problem:
        compared(monkeypatch, "0/1", gap)
    text = str(problem.value)
    assert text.startswith("3 of 10: "), text
    assert "cell 1: ValueError: too late" in text
    assert "cell 3, late fill: 0.5 from the CPU's" in text


def test_a_stage_fails_with_any_of_its_parts():
    passed = {"outcome": "passed", "details": {"cells": 4, "largest relative difference": 0.0}}
    failed = {"outcome": "failed", "details": "did not end within 900 s"}
    assert merged([passed, failed, passed]) == failed
    assert merged([failed]) == failed
    assert merged([{"outcome": "skipped", "details": "no NCCL"}])["outcome"] == "skipped"


def test_a_delay_that_delays_nothing_is_no_evidence():
    with pytest.raises(AssertionError, match="static: nothing is late at nowhere"):
        run_cell(Cell("static", rounds=1), "pretended", place="nowhere", seconds=0.001)
