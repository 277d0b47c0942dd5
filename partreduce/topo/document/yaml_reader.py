"""Strict reading of YAML: JSON's values and limits, but at most 1 MiB, for small hand-written files.

Anchors, aliases (which can expand without limit), tags, several documents and deep nesting raise an error while
PyYAML's event stream is scanned, without recursion; the values are then read from its tree of nodes. Scalars follow
YAML 1.2 (`yes`, `010`, `1:30` are text).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from partreduce.topo.document.reader import MAX_DEPTH, MAX_INTEGER, decode, in_file
from partreduce.topo.errors import DocumentError
from partreduce.topo.place import child, format_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

MAX_YAML_BYTES = 2**20

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def parse_yaml(data: bytes, *, source: str = "") -> object:
    """Parse one YAML document into values that JSON can hold; raise DocumentError, with the file name `source`."""
    with in_file(source):
        return _parse(decode(data, max_bytes=MAX_YAML_BYTES), source)


def _parse(text: str, source: str) -> object:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return _value_of(yaml.compose(text, Loader=loader), "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "cannot be parsed").split())
        way_out = "check the indentation and quotes"
        if mark and any("\t" in line for line in text.split("\n")[mark.line : mark.line + 1]):
            way_out = "YAML indents by spaces, and this line holds a tab"
        if source.endswith(".py"):
            way_out = f"it looks like a script; partreduce design CLUSTER --model {source}:NAME reads its model"
        raise DocumentError(_line_column(mark), f"is not YAML: {problem}; {way_out}") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        problem = ascii(" ".join(str(error).split()))[1:-1]
        raise DocumentError("document", f"is not YAML: {problem}; remove the character") from None


def _check_events(events: Iterator[yaml.Event]) -> None:
    import yaml

    depth = documents = 0
    for event in events:
        problem = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "uses an anchor or an alias; write the value out"
        elif tag := getattr(event, "tag", None):
            problem = f"uses the tag {format_value(tag)}; remove it"
        elif isinstance(event, yaml.CollectionStartEvent) and depth == MAX_DEPTH:
            problem = f"is nested deeper than {MAX_DEPTH} levels; no document of ours is"
        elif isinstance(event, yaml.DocumentStartEvent) and documents:
            problem = "starts a second document; a file holds one"
        if problem:
            raise DocumentError(_line_column(event.start_mark), problem)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
    if not documents:
        raise DocumentError("1:1", "is empty; the file may be cut off")


def _line_column(mark: Any) -> str:  # noqa: ANN401 - two classes, of PyYAML and of its C loader
    return f"{mark.line + 1}:{mark.column + 1}" if mark else "document"


def _value_of(node: yaml.Node | None, place: str) -> Any:  # noqa: ANN401 - what JSON may hold
    """Return the value of a YAML node at path `place`; raise DocumentError for keys that are no words or given twice.

    The recursion is bounded by `_check_events`.
    """
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_value_of(item, child(place, index)) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _plain(node.value, place)
    assert isinstance(node, yaml.MappingNode), "YAML has three kinds of node"
    result: dict[str, Any] = {}
    for key, item in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise DocumentError(_line_column(key.start_mark), "uses a list or an object as a key; keys are words")
        if key.value in result:
            raise DocumentError(place or "document", f"has the key {format_value(key.value)} twice; keep one of them")
        result[key.value] = _value_of(item, child(place, key.value))
    return result


def _plain(text: str, place: str) -> object:
    """Return the value of an unquoted scalar by YAML 1.2's core schema; raise DocumentError beyond JSON's numbers."""
    problem = ""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        if len(text) <= 17 and abs(int(text)) <= MAX_INTEGER:
            return int(text)
        problem = f"is {format_value(text)[1:-1]}, an integer beyond ±(2**53 − 1)"
    elif _NUMBER.fullmatch(text):
        if math.isfinite(float(text)):
            return float(text)
        problem = f"is {format_value(text)[1:-1]}, which overflows; numbers are finite"
    elif text.lower().lstrip("+-") in (".inf", ".nan"):
        problem = f"is {text}; numbers are finite"
    if problem:
        raise DocumentError(place or "document", problem)
    return text
