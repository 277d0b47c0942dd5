"""Hosts, for tests of runs over several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.sshd import Hosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    made = Hosts(tmp_path)
    yield made
    made.close()
