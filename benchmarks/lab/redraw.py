"""Write the tables and pictures of a finished lab again, from its JSON file: python benchmarks/lab/redraw.py NAME."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

from lab.measure import Measured
from lab.plots import draw_prediction, draw_setting
from lab.setting import Setting
from lab.table import Row, block, document

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(name: str) -> int:
    content = json.loads((RESULTS / f"lab-{name}.json").read_text())
    how, blocks = content["measure"], {}
    count = how["num_workers"]
    for fields in content["settings"]:
        setting = Setting(**{**fields, "slow": tuple((rank, factor) for rank, factor in fields["slow"])})
        found: dict[str, list[Measured]] = {}
        for cell in content["cells"]:
            if cell["setting"] == setting.name:
                found.setdefault(cell["contestant"], []).append(Measured(**cell["measured"]))
        target = how["targets"][setting.name]
        rows = [Row(key, how["families"][key], found[key], target) for key in how["families"] if key in found]
        if rows:
            blocks[setting.name] = block(rows, setting, how["compute"], count)
            path = RESULTS / f"lab-{name}-{setting.name.replace(' ', '-')}.png"
            title = f"{setting.name}, {count} workers, computing {1e3 * how['compute']:g} ms per step"
            draw_setting(path, title, rows, target, 1e3 * setting.free_step(how["compute"], count))
    if content["prediction"]:
        blocks["Simulator against lab"] = content["prediction"]["words"]
        path = RESULTS / f"lab-{name}-prediction.png"
        draw_prediction(path, content["prediction"]["points"], "calibrated on every second cell")
    (RESULTS / f"lab-{name}.md").write_text(document(content["head"], blocks, content["notes"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
