"""Results: the table, the pictures and the predictions of a lab, made from nothing but its JSON content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import compact
from benchmarks.lab import plots
from benchmarks.lab.measure import Measured
from benchmarks.lab.setting import Setting
from benchmarks.lab.table import Row, block, document

PREDICTION = "Simulator against lab"
CELL = ("setting", "contestant", "measured")
MEASURED = ("step_ms", "nic_mb", "shares", "curve")


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    """`lab-NAME.json`, `.md`, one picture per setting.

    The JSON file holds what tables and pictures are drawn from; `write_everything` keeps the rest.
    """
    content = published(content)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"lab-{name}"
    (folder / f"{stem}.json").write_text(compact.text(content))
    (folder / f"{stem}.md").write_text(page(content))
    for setting, rows in listed(content):
        count = content["measure"]["num_workers"]
        title = f"{setting.name}, {count} workers, computing {1e3 * setting.compute:g} ms per step"
        path = folder / f"{stem}-{setting.name.replace(' ', '-')}.png"
        plots.draw_setting(path, title, rows, rows[0].target, 1e3 * setting.free_step(count))


def write_everything(folder: Path, name: str, content: dict[str, Any]) -> None:
    """All that was measured, in `raw/`, which is not committed."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "raw" / f"lab-{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def published(content: dict[str, Any]) -> dict[str, Any]:
    """What `page` and the pictures read, and the planner's recommendations, for whoever trains with them again."""
    kept = {
        key: content[key]
        for key in ("head", "measure", "settings", "notes", "recommendations", "cells")
        if key in content
    }
    kept["cells"] = [{key: cell[key] for key in CELL} for cell in kept["cells"]]
    for cell in kept["cells"]:
        cell["measured"] = {key: cell["measured"][key] for key in MEASURED}
    prediction = content["prediction"]
    kept["prediction"] = prediction and {"words": prediction["words"]}
    return kept


def page(content: dict[str, Any]) -> str:
    """The tables with their head and notes, as Markdown."""
    count = content["measure"]["num_workers"]
    blocks = {setting.name: block(rows, setting, count) for setting, rows in listed(content)}
    if content["prediction"]:
        blocks[PREDICTION] = content["prediction"]["words"]
    return document(content["head"], blocks, content["notes"])


def listed(content: dict[str, Any]) -> list[tuple[Setting, list[Row]]]:
    """Every setting in which something was measured, with its rows in the order of the contestants."""
    measure, found = content["measure"], []
    for fields in content["settings"]:
        setting = Setting.of_json(fields)
        cells: dict[str, list[Measured]] = {}
        for cell in content["cells"]:
            if cell["setting"] == setting.name:
                cells.setdefault(cell["contestant"], []).append(Measured(**cell["measured"]))
        rates = measure["rates"].get(setting.name, {})
        rows = [
            Row(name, family, cells[name], measure["targets"][setting.name], rates.get(name))
            for name, family in measure["families"].items()
            if name in cells
        ]
        if rows:
            found.append((setting, rows))
    return found
