"""Nothing here depends on how busy the machine is."""

from helpers.no_hurry import no_hurry  # noqa: F401 - a fixture
