"""Benchmarks of the group generator: they drive it with the rig of its tests, which lies beside the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
