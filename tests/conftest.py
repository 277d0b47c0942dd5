"""What tests of several folders build with; values stand in `helpers/`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partreduce.topo.schedule import Schedule

UNMINDED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50, suppress_health_check=UNMINDED)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Leave out of later collections of garbage what stays to the end: torch and all tests are a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Schedule], Path]:
    """Writes a schedule into the test's folder, under its own name, and gives the path."""
    from partreduce import write_schedule

    def store(schedule: Schedule) -> Path:
        path = tmp_path / f"{schedule.name}.json"
        write_schedule(path, schedule)
        return path

    return store
