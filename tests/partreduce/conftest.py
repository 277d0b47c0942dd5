"""Nothing here depends on how busy the machine is."""

from helpers.unhurried import unhurried  # noqa: F401 - a fixture
