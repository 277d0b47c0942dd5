"""The whole catalogue on six clusters: claims with their numbers and certificates, and metrics."""

from __future__ import annotations

import json
from typing import Any

from . import tool
from .records import shortened
from .schedules import SCHEDULES

CLUSTERS = ("2x2", "1x8", "2x4", "4x4", "3,3,2", "8x8")
PARAMETERS = {
    "allreduce": {"every": 4},
    "diloco": {"every": 12, "fragments": 3, "late": 2, "alpha": 0.5},
    "node-then-all": {"node_rounds": 3},
    "noloco": {"every": 5, "seed": 2},
    "random-partitions": {"group": 2, "phases": 5, "seed": 4},
    "clustered": {"links": 2},
    "random-regular": {"degree": 3, "seed": 1},
    "base-k-plus-1": {"k": 2},
}
"""Settings that are recorded in addition to the defaults."""


def inputs() -> dict[str, Any]:
    """Every entry on every cluster, some with parameters, and the schedules of the other parts."""
    tool.load_commands()
    made: dict[str, Any] = {}
    for cluster in CLUSTERS:
        for name in tool.catalogue():
            made[f"{cluster} {name}"] = {"cluster": cluster, "build": name, "parameters": {}}
            if name in PARAMETERS and cluster in {"2x4", "4x4"}:
                made[f"{cluster} {name} set"] = {"cluster": cluster, "build": name, "parameters": PARAMETERS[name]}
    return made | {f"kind {name}": {"schedule": document} for name, document in SCHEDULES.items()}


def schedule_of(given: dict[str, Any]) -> Any:  # noqa: ANN401 - a Schedule
    if "schedule" in given:
        return tool.parse(given["schedule"])
    return tool.build(given["cluster"], given["build"], given["parameters"])


class Certificates:
    """Claims, statuses, numbers, witnesses, certificates, and the exit code and the first lines of `verify`."""

    inputs = staticmethod(inputs)

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        schedule, outcome = schedule_or_error(given)
        if schedule is None:
            return outcome
        proof, certificate = tool.prove(schedule)
        entries = {entry["claim"]: entry for entry in certificate.get("claims", ())}
        claims = {}
        for claim in proof["claims"]:
            facts = {key: value for key, value in claim.items() if key != "claim"}
            entry = {key: value for key, value in entries.get(claim["claim"], {}).items() if key != "claim"}
            claims[claim["claim"]] = shortened(facts | ({"entry": entry} if entry else {}))
        rest = {k: v for k, v in certificate.items() if k not in ("claims", "schedule_sha256")}
        outcome = {"verdict": proof["verdict"], "certificate": rest, "claims": claims}
        with tool.folder_with({}):
            tool.write("schedule.json", schedule)
            code, out, err = tool.command_line(["verify", "schedule.json"])
        above = out.split("\n\n")[0].splitlines()[:2]
        return outcome | {"verify": {"exit": code, "first": above, "error": err}}


class Metrics:
    """Metrics as `verify --json` has them, groups as `show --json` has them, exit codes and errors."""

    inputs = staticmethod(inputs)

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        schedule, outcome = schedule_or_error(given)
        if schedule is None:
            return outcome
        with tool.folder_with({}):
            tool.write("schedule.json", schedule)
            code, out, err = tool.command_line(["verify", "schedule.json", "--json"])
            outcome["verify"] = {"exit": code} | (shortened(json.loads(out)["metrics"]) if out else {"error": err})
            code, out, err = tool.command_line(["show", "schedule.json", "--json"])
            outcome["show"] = {"exit": code} | (shortened(json.loads(out)) if out else {"error": err})
        return outcome


def schedule_or_error(given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The schedule, or what is recorded where there is none."""
    try:
        return schedule_of(given), {}
    except Exception as error:
        if not tool.is_own_error(error):
            raise
        return None, {"refused": tool.error_line(error)}
