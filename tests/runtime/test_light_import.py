"""What a training script loads with its optimizer: nothing that proves, plans or searches."""

import json
import subprocess
import sys

from helpers import children


def test_the_optimizer_loads_no_prover_no_planner_and_no_search():
    asked = "import json, sys, partreduce; partreduce.DistributedOptimizer; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env=children.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = [name for name in json.loads(done.stdout) if name.startswith("partreduce.")]
    assert "partreduce.runtime.optimizer" in loaded
    others = ("partreduce.verify", "partreduce.planner", "partreduce.schedulers.synthesis", "partreduce.commands")
    assert [name for name in loaded if name.startswith(others)] == []
