"""What every codec writes, and what schedules send: bytes of an operation, on the wire, and through each link."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from . import tool
from .records import sha256, summary
from .schedules import SCHEDULES

CODECS = ("none", "float16", "bfloat16", "int8", "int4")
COUNTS = (1, 7, 64, 1000, 4097)
BLOCKS = (32, 256)
CLUSTERS = ("2x2", "4x4", "3,3,2")
BUILT = ("allreduce", "ring", "prague-figure-10", "node-then-all", "hyper-cuboid", "one-peer-exponential", "diloco")


class Codecs:
    """Codes of random numbers and their length; `simulate` and `verify` with a model's size."""

    def inputs(self) -> dict[str, Any]:
        tool.load_commands()
        made: dict[str, Any] = {}
        for codec in CODECS[1:]:
            for count in COUNTS:
                for block in BLOCKS if codec.startswith("int") else BLOCKS[1:]:
                    made[f"code of {count} in {codec} {block}"] = {"codec": codec, "count": count, "block": block}
        for codec in CODECS:
            made[f"row in {codec}"] = {"codec": codec, "columns": [1, 3, 16, 300]}
        made |= {f"bytes of {name}": {"schedule": document} for name, document in SCHEDULES.items()}
        for cluster in CLUSTERS:
            made |= {f"bytes of {cluster} {name}": {"cluster": cluster, "build": name} for name in BUILT}
        return made

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        if "count" in given:
            return self._code(**given)
        if "columns" in given:
            return {str(columns): tool.row_bytes(given["codec"], columns) for columns in given["columns"]}
        try:
            schedule = (
                tool.parse(given["schedule"])
                if "schedule" in given
                else tool.build(given["cluster"], given["build"], {})
            )
        except Exception as error:
            if not tool.is_own_error(error):
                raise
            return {"refused": tool.error_line(error)}
        with tool.folder_with({}):
            tool.write("schedule.json", schedule)
            size = ["--model-bytes", "1000000B"]
            return {
                "simulate": self._answer(["simulate", "schedule.json", "--rounds", "24", *size]),
                "verify": self._answer(["verify", "schedule.json", *size]),
            }

    def _answer(self, arguments: list[str]) -> dict[str, Any]:
        """What of an answer counts bytes or seconds of operations."""
        code, out, err = tool.command_line([*arguments, "--json"])
        if not out:
            return {"exit": code, "error": err}
        answer = json.loads(out)
        answer = answer.get("metrics", answer)
        kept = {k: v for k, v in answer.items() if "bytes" in k or "communicat" in k or "seconds" in k}
        return {"exit": code} | kept

    def _code(self, codec: str, count: int, block: int) -> dict[str, Any]:
        """The code of numbers of all sizes, and what comes out of it."""
        numbers = np.random.default_rng(count)
        values = (numbers.standard_normal(count) * 10.0 ** numbers.integers(-4, 4, count)).astype(np.float32)
        code, decoded = tool.code(codec, block, values)
        return {
            "bytes": tool.code_bytes(codec, block, count),
            "code": sha256(code),
            "written": len(code),
            "decoded": summary(decoded),
            "largest_error": float(np.abs(decoded - values).max()),
        }
