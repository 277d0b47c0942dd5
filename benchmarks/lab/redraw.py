"""Write tables and pictures of finished labs again, from their JSON files: python benchmarks/lab/redraw.py [NAME …]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

from lab.results import write

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(names: list[str], folder: Path = RESULTS) -> int:
    """All of them without a name; what was predicted stays as it was."""
    for name in names or sorted(path.stem.removeprefix("lab-") for path in folder.glob("lab-*.json")):
        write(folder, name, json.loads((folder / f"lab-{name}.json").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
