"""Prague's lock vector, searched by another tool: a Promela model run by Spin finds as many states."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.explore.lock_vector import SMALL

MODEL = Path(__file__).parents[3] / "benchmarks" / "explore" / "models" / "lock_vector.pml"


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_spin_finds_as_many_states(tmp_path, configuration):
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed; apt-get install spin gcc")
    workers, size = configuration.num_workers, configuration.group_size
    defines = [f"-DN={workers}", f"-DMASKS={2**workers}", f"-DSIZE={size}", f"-DMAX={configuration.max_outstanding}"]
    subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=tmp_path, check=True, capture_output=True)
    build = ["gcc", "-O0", "-w", "-DNOREDUCE", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["./pan", "-m1000000"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "errors: 0" in done.stdout
    stored = re.search(r"(\d+) states, stored", done.stdout)
    assert stored is not None
    assert int(stored[1]) == configuration.run().require().states
