"""Remove time limits that depend on the load of the machine."""

import pytest

from helpers.no_hurry import brief, no_hurry  # noqa: F401 - fixtures
from partreduce.__main__ import main


@pytest.fixture(scope="module")
def figure_10(tmp_path_factory):
    path = tmp_path_factory.mktemp("schedules") / "figure10.json"
    assert main(["design", "4x4", "--build", "prague-figure-10", "-o", str(path)]) == 0
    return path
