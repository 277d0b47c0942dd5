"""The environment and command with which tests start Python processes that import the same packages and helpers."""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def environment(**more):
    """Return this process's environment variables, with the checkout and the helpers on PYTHONPATH, and `more`."""
    places = [str(TESTS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **more}


def module(name):
    """Return the command that runs a module, such as `helpers.scenarios`."""
    return [sys.executable, "-P", "-m", name]
