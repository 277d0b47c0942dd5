"""What tests of several folders build with; values stand in `helpers/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preduce.topo.schedule import Schedule


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Schedule], Path]:
    """Writes a schedule into the test's folder, under its own name, and gives the path."""
    from preduce import write_schedule

    def store(schedule: Schedule) -> Path:
        path = tmp_path / f"{schedule.name}.json"
        write_schedule(path, schedule)
        return path

    return store
