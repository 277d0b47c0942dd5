"""How tests start Python in another process, so that it imports the same packages and helpers as they do."""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def environment(**more):
    """This process's variables, with the checkout and the tests' helpers importable, and some more."""
    places = [str(TESTS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}


def module(name):
    """The command that runs a module, such as `helpers.scenarios`."""
    return [sys.executable, "-P", "-m", name]
