"""What `design` recommends for twelve small jobs, with its predictions, at a counted effort."""

from __future__ import annotations

import json
from typing import Any

from . import tool

EFFORT = ["--effort", "4", "--time-limit", "280s", "--json"]
"""The effort is counted, and ends the search; the limit never comes."""
JOBS = {
    "plain": ["4x4", "--model-bytes", "100MB"],
    "slow links": ["2x4", "--model-bytes", "400MB", "--set", "nic=125MB/s", "--set", "latency=50us"],
    "straggler": ["4x2", "--model-bytes", "50MB", "--set", "slow=3:5x", "--set", "nic=1GB/s"],
    "jitter": ["2x4", "--model-bytes", "200MB", "--set", "jitter=0.3", "--set", "nic=1GB/s"],
    "random slowdowns": ["2x4", "--model-bytes", "100MB", "--set", "disturb=hop:6x", "--set", "compute=20ms"],
    "adam": ["4x4", "--model-bytes", "300MB", "--set", "nic=500MB/s", "--optimizer", "adam"],
    "sgd per worker": ["2x4", "--model-bytes", "100MB", "--optimizer", "sgd", "--data", "per-worker"],
    "codecs": ["4x2", "--model-bytes", "500MB", "--set", "nic=250MB/s", "--codec", "any", "--optimizer", "momentum"],
    "uneven nodes": ["3,3,2", "--model-bytes", "100MB", "--set", "nic=1GB/s"],
    "many nodes": ["64x8", "--model-bytes", "100MB", "--set", "nic=1GB/s"],
    "late": ["4x4", "--model-bytes", "200MB", "--set", "nic=1GB/s", "--sync", "delay"],
    "communication": [
        "4x4", "--model-bytes", "552MB", "--objective", "communication", "--max", "consensus-distance=8/7",
        "--algorithm", "hierarchical",
    ],
    "survives": ["2x4", "--model-bytes", "100MB", "--set", "nic=1GB/s", "--tolerate-failures", "1"],
    "impossible": ["4x4", "--model-bytes", "100MB", "--max", "communication=1us"],
}  # fmt: skip
MODEL = '''"""A network with an embedding."""
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(20000, 32, mode="sum"), torch.nn.Linear(32, 8))
'''
TABLES = ["2x2", "--model", "model.py:make", "--set", "nic=100MB/s", "--set", "touched=0.weight:1%:2%:3%"]
NUMBERS = (
    "steps_per_round", "communication_seconds_per_step", "nic_bytes_per_step", "consensus_distance", "drift",
    "contraction", "step_seconds", "waiting_seconds_per_step", "steps_ratio",
)  # fmt: skip
"""Of a plain alternative."""
FEW = ("communication_seconds_per_step", "step_seconds", "steps_ratio")
"""Of an option of the front, of which there may be hundreds."""


class Plans:
    """The recommendation with its numbers and reasons, and the front and the baselines by name with theirs."""

    def inputs(self) -> dict[str, Any]:
        tool.load_commands()
        jobs: dict[str, Any] = {name: {"command": ["design", *job, *EFFORT]} for name, job in JOBS.items()}
        return jobs | {"tables": {"command": ["design", *TABLES, *EFFORT], "files": {"model.py": MODEL}}}

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        with tool.folder_with(given.get("files", {})):
            code, out, err = tool.command_line(given["command"])
        if not out:
            return {"exit": code, "error": err}
        answer = json.loads(out)
        answer.pop("sha256", None)
        for name, numbers in (("front", FEW), ("baselines", NUMBERS)):
            if name in answer:
                answer[name] = {option["name"]: {n: option.get(n) for n in numbers} for option in answer[name]}
        return {"exit": code, "errors": err} | answer
