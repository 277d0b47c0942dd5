"""Nothing here depends on how busy the machine is; scikit-learn is imported once for all scripts."""

import pytest

from helpers.no_hurry import no_hurry  # noqa: F401 - a fixture
from helpers.warm import WARM


@pytest.fixture(autouse=True)
def one_import(monkeypatch):
    monkeypatch.setattr(WARM, "imports", ["sklearn.datasets"])
