"""Two nodes, for tests of runs over several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.two_nodes import Begun, Network, why_no_network
from partreduce.runtime.launcher.signals import mark_delivered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_request() -> None:
    """A signal that an earlier test sent to this process asks nothing of the next, which may wait without a handler."""
    mark_delivered()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Begun]]:
    """Starts runs in the test's folder; what is left of them ends with the test."""
    made: list[Begun] = []

    def begin(*arguments: Any, **options: Any) -> Begun:
        made.append(Begun(tmp_path, *arguments, **options))
        return made[-1]

    yield begin
    for run in made:
        run.close()


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_no_network():
        pytest.skip(reason)
    made = Network()
    yield made
    made.close()
