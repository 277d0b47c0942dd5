"""No test of the documentation depends on the load of the machine."""

from helpers.no_hurry import no_hurry  # noqa: F401 - a fixture
