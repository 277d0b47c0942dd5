"""Hooks and fixtures for all tests; values that tests of several folders share are in `helpers/`."""

from __future__ import annotations

import gc
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from helpers.tiers import mark_slow

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from partreduce.topo.schedule import Schedule

pytest.register_assert_rewrite("helpers.elastic_runs", "helpers.thread_ranks")
UNMINDED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50, suppress_health_check=UNMINDED)
settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that only `make test-slow` runs; start with files that run the most processes."""
    mark_slow(items, whole=not any("::" in argument for argument in config.args))
    if "PYTEST_XDIST_WORKER" in os.environ:
        runs = Counter(item.path for item in items if item.get_closest_marker("processes"))
        items.sort(key=lambda item: -runs[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage during imports, and never what they make: a million objects of torch and the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def save_schedule(tmp_path: Path) -> Callable[[Schedule], Path]:
    """Return a function that writes a schedule to `NAME.json` in the test's folder and returns the path."""
    from partreduce import write_schedule

    def store(schedule: Schedule) -> Path:
        path = tmp_path / f"{schedule.name}.json"
        write_schedule(path, schedule)
        return path

    return store
