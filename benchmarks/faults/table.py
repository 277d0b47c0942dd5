"""docs/faults.md: what the campaigns found, kind by fault, from benchmarks/results/faults.json."""

from __future__ import annotations


def add_results(fired, seed):  # type: ignore[no-untyped-def]
    pass


def write_page():  # type: ignore[no-untyped-def]
    pass
