"""Marks the slow tests, which only `make test-slow` runs, by the table `tests/slow.toml`."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def _stays(keep, row, position):
    if isinstance(keep, int):
        return position % keep == 0
    return any(fnmatchcase(row, pattern) for pattern in keep)


def mark_slow(items, *, whole):
    """Mark the slow tests among collected items; with `whole` (whole files were collected) every key must match."""
    by_test = {}
    for item in items:
        by_test.setdefault(item.path, {}).setdefault(item.originalname, []).append(item)
    stale = []
    table = tomllib.loads((TESTS / "slow.toml").read_text(encoding="utf-8"))
    for file, tests in [row for files in table.values() for row in files.items()]:
        if (TESTS / file).exists() and TESTS / file not in by_test:
            continue
        for key, keep in tests.items():
            test, _, rows = key.partition("[")
            found = [name for name in by_test.get(TESTS / file, ()) if fnmatchcase(name, test)]
            marked = [_mark(by_test[TESTS / file][name], rows.removesuffix("]") or "*", keep) for name in found]
            if len(found) != 1 or marked == [0]:
                stale.append(f"{file}: {key}: got {found or 'none'}")
    if whole and stale:
        lines = "\n".join(stale)
        raise pytest.UsageError(f"tests/slow.toml: expected one test for each key, of which rows are slow:\n{lines}")


def _mark(items, rows, keep):
    """Mark the slow rows of a test among those that match `rows`, and return how many there are."""
    ids = [(item, item.name.partition("[")[2][:-1]) for item in items]
    chosen = [(item, row) for item, row in ids if fnmatchcase(row, rows)]
    slow = [item for position, (item, row) in enumerate(chosen) if not _stays(keep, row, position)]
    for item in slow:
        item.add_marker(pytest.mark.slow)
    return len(slow)
