"""The reference metrics in `tests/golden.json`: computed by other code, or printed in the papers."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden.json").read_text(encoding="utf-8"))
