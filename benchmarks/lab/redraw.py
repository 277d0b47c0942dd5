"""Write tables and pictures of finished labs again, from their JSON files.

python -m benchmarks.lab.redraw [NAME …]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.kit import RESULTS, parser
from benchmarks.lab.results import write


def main(words: list[str], folder: Path = RESULTS) -> int:
    """All of them without a name; what was predicted stays as it was."""
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*")
    names = arguments.parse_args(words).names
    for name in names or sorted(path.stem.removeprefix("lab-") for path in folder.glob("lab-*.json")):
        write(folder, name, json.loads((folder / f"lab-{name}.json").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
