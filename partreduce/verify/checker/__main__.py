"""Run the checker as a folder: `python -I FOLDER certificate.json schedule.json`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType

if not __package__:
    # Python starts a folder without making it a package. It becomes one here, under another name, so the files
    # find one another by relative imports whatever the folder is called, and nothing else in its folder is imported.
    folder = str(Path(__file__).parent)
    sys.path = [place for place in sys.path if place != folder]
    __package__ = "partreduce_checker"
    package = ModuleType(__package__)
    package.__path__ = [folder]
    sys.modules[__package__] = package

from .program import main

if __name__ == "__main__":
    gc.disable()  # nothing here is cyclic, and a large file holds millions of objects
    sys.exit(main(sys.argv[1:]))
