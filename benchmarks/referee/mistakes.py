"""Wrong command lines, broken files and wrong calls: exit codes, and the first line of what is said."""

from __future__ import annotations

import copy
import json
from typing import Any

from . import tool
from .inputs import CALLS, CHANGES, COMMANDS, FILES, TEXTS


class Mistakes:
    """One number and two lines of each."""

    def inputs(self) -> dict[str, Any]:
        tool.load_commands()
        made: dict[str, Any] = {}
        for number, line in enumerate(COMMANDS, 1):
            words = line if isinstance(line, list) else line.split()
            named = {word.split(":")[0] for word in words}
            files = {name: content for name, content in FILES.items() if name in named}
            made[f"command {number:03}"] = {"command": words, "files": files}
        for number, (base, path, *value) in enumerate(CHANGES, 1):
            file = changed(FILES[base], path, *value)
            made[f"document {number:03}"] = {"command": ["verify", "x.json"], "files": {"x.json": file}}
        for number, text in enumerate(TEXTS, 1):
            made[f"text {number:03}"] = {"command": ["verify", "x.json"], "files": {"x.json": text}}
        for number, call in enumerate(CALLS, 1):
            made[f"call {number:03}"] = {
                "call": call,
                "files": {n: file for n, file in FILES.items() if f"'{n}'" in call},
            }
        return made

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        with tool.folder_with(given["files"]):
            if "call" in given:
                code, out, err = tool.python_call(given["call"])
            else:
                code, out, err = tool.command_line(given["command"])
        return {"exit": code, "said": _first(err), "printed": _first(out) if not err else ""}


def changed(document: Any, path: list[str | int], *value: Any) -> Any:  # noqa: ANN401 - any JSON
    """A copy with one value replaced, or taken out where none is given."""
    made = copy.deepcopy(document)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if value:
        inner[path[-1]] = value[0]
    else:
        del inner[path[-1]]
    return json.loads(json.dumps(made))


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
