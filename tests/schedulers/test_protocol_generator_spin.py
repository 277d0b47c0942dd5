"""Prague's lock vector, searched by another tool: a Promela model run by Spin finds as many states."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from preduce.schedulers.protocols.group_generator.buffers import LockVector
from preduce.verify.explore import explore

MODEL = Path(__file__).parents[2] / "verify" / "models" / "lock_vector.pml"
CONFIGURATIONS = [(2, 2, 2), (2, 2, 4), (3, 2, 1), (3, 2, 2), (3, 2, 3), (3, 3, 3), (3, 2, 4), (4, 2, 2), (4, 2, 3),
                  (4, 3, 3), (4, 3, 4), (4, 4, 4), (5, 2, 2)]  # fmt: skip


@pytest.mark.parametrize(("workers", "size", "outstanding"), CONFIGURATIONS)
def test_spin_finds_as_many_states(tmp_path, workers, size, outstanding):
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed; apt-get install spin gcc")
    defines = [f"-DN={workers}", f"-DMASKS={2**workers}", f"-DSIZE={size}", f"-DMAX={outstanding}"]
    subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=tmp_path, check=True, capture_output=True)
    build = ["gcc", "-O1", "-w", "-DNOREDUCE", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["./pan", "-m1000000"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "errors: 0" in done.stdout
    stored = re.search(r"(\d+) states, stored", done.stdout)
    assert stored is not None
    assert int(stored[1]) == explore(LockVector(workers, size, outstanding)).require().states
