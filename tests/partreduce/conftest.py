"""Nothing here depends on how busy the machine is."""

from helpers.no_hurry import brief, no_hurry  # noqa: F401 - fixtures
