"""`make gpu`, or from a plain checkout `python3 -m benchmarks.gpu [STAGE …]`: the CUDA path on this machine's GPU.

Every stage is a process with its own time limit, and a failure does not stop the others. Results go to
`build/gpu/results.json`, and what each cell found next to it; the exit code is 1 if a stage failed. Without a GPU it
says so and ends with 0;
`--simulated` then runs stages 3, 3a, 3b, 3c and 5 on the CPU's simulated device.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from typing import Any

from benchmarks.gpu.stages import NEEDED, SIMULATED, STAGES, Skip, results_folder
from benchmarks.kit import ROOT, run_bounded

MARK = "RESULT "


def reason_to_skip() -> str | None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return f"not installed: {', '.join(missing)} (python3 -m pip install {' '.join(missing)})"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return None


def run_stage(name: str) -> int:
    """Run a stage in this process, and print its outcome as the last line of output."""
    try:
        outcome = {"outcome": "passed", "details": STAGES[name][0]()}
    except Skip as why:
        outcome = {"outcome": "skipped", "details": str(why)}
    except Exception as error:  # noqa: BLE001 - reported
        traceback.print_exc()
        outcome = {"outcome": "failed", "details": f"{type(error).__name__}: {error}"[:2000]}
    sys.stdout.write(MARK + json.dumps(outcome) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of ranks that are stuck shall not keep the process


def start_stage(name: str) -> dict[str, Any]:
    """Run a stage in its own process, with output to a file, and return its result."""
    _, limit, environment = STAGES[name]
    started = time.monotonic()
    # The simulated device and the simulated ranks are the tests' own.
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    file = results_folder() / f"{name.replace(' ', '-')}.txt"
    environment = os.environ | environment | {"PYTHONPATH": path}
    code = run_bounded([sys.executable, "-m", "benchmarks.gpu", "--stage", name], file, limit, environment)
    text = file.read_text()
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if code is not None and lines:
        result = json.loads(lines[-1].removeprefix(MARK))
    else:
        how = f"did not end within {limit:g} s; {file.name}" if code is None else f"ended with {code}: {text[-1500:]}"
        result = {"outcome": "failed", "details": how}
    return {"stage": name, **result, "seconds": round(time.monotonic() - started, 1)}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--stage"]:
        return run_stage(arguments[1])
    if arguments[:1] == ["--simulated"]:
        os.environ[SIMULATED], arguments = "1", arguments[1:] or ["3", "3a", "3b", "3c", "5"]
    why = None if os.environ.get(SIMULATED) else reason_to_skip()
    if why is not None:
        print(f"make gpu: skipped, {why}")
        return 0
    chosen = [name for name in STAGES if not arguments or name.split()[0] in arguments]
    results = []
    for name in chosen:
        result = start_stage(name)
        results.append(result)
        (results_folder() / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        print(
            f"{result['outcome']:8}{result['seconds']:7.1f} s  {name}: {json.dumps(result['details'])[:400]}",
            flush=True,
        )
    failed = [result["stage"] for result in results if result["outcome"] == "failed"]
    print(f"{len(results) - len(failed)} of {len(results)} stages passed or were skipped; build/gpu/results.json")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
