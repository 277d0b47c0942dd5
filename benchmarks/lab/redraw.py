"""Write tables and pictures of finished labs again, from their JSON files.

    python -m benchmarks.lab.redraw [NAME …]
    python -m benchmarks.lab.redraw NAME --join OTHER [OTHER …]   # the cells of several runs in one table

Runs are joined where their settings and targets are the same; the others' own files go.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.lab.results import write

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(words: list[str], folder: Path = RESULTS) -> int:
    """All of them without a name; what was predicted stays as it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--join", nargs="+", default=[], metavar="OTHER")
    chosen = parser.parse_args(words)
    if chosen.join and len(chosen.names) != 1:
        parser.error("--join needs one name, of the run that takes the others' cells")
    for name in chosen.names or sorted(path.stem.removeprefix("lab-") for path in folder.glob("lab-*.json")):
        content = _read(folder, name)
        for other in chosen.join:
            _join(content, _read(folder, other))
        write(folder, name, content)
        for other in chosen.join:
            for path in folder.glob(f"lab-{other}[.-]*"):
                path.unlink()
    return 0


def _read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"lab-{name}.json").read_text())
    return content


def _join(content: dict[str, Any], other: dict[str, Any]) -> None:
    """Add the other run's cells, contestants and notes."""
    for setting in other["settings"]:
        if setting not in content["settings"]:
            raise SystemExit(f"redraw: setting {setting['name']!r} is not the same in both runs")
        if other["measure"]["targets"][setting["name"]] != content["measure"]["targets"][setting["name"]]:
            raise SystemExit(f"redraw: the target of {setting['name']!r} is not the same in both runs")
        rates = content["measure"]["rates"].setdefault(setting["name"], {})
        rates.update(other["measure"]["rates"].get(setting["name"], {}))
    content["measure"]["families"].update(other["measure"]["families"])
    content["cells"] += other["cells"]
    content["notes"] += [f"in a further run: {note}" for note in other["notes"]]
    for key in ("commit", "date", "command", "load average when cells began"):
        if key in content["head"]:
            content["head"][key] = f"{content['head'][key]}; {other['head'][key]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
