"""Strict reading of YAML: the same values as JSON, from the same limits. For small files that people write.

Built on PyYAML's event stream, which never recurses: anchors and aliases (bombs), tags, several documents, duplicate
keys and deep nesting are refused as they pass by. Scalars follow YAML 1.2 (`yes`, `010` and `1:30` are texts).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from preduce.topo.document.place import child, shown
from preduce.topo.document.reader import MAX_DEPTH, MAX_INTEGER, decode
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

MAX_YAML_BYTES = 2**20

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def parse_yaml(data: bytes, *, max_bytes: int = MAX_YAML_BYTES, source: str = "") -> object:
    """Parse one YAML document strictly.

    Raises:
        DocumentError: with the place, as a path or, for syntax errors, as line:column.
    """
    import yaml

    text = decode(data, max_bytes=max_bytes, source=source)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(source).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "document"
        problem = " ".join((error.problem or "cannot be parsed").split())
        raise DocumentError(place, f"is not YAML: {problem}; check the indentation and quotes", source) from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        problem = ascii(" ".join(str(error).split()))[1:-1]
        raise DocumentError("document", f"is not YAML: {problem}; remove the character", source) from None


class _Builder:
    """Puts values together from events, keeping the stack of open lists and objects by itself."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.stack: list[tuple[list[Any] | dict[str, Any], str]] = []
        self.keys: list[str | None] = []
        self.documents: list[object] = []

    def build(self, events: Iterator[yaml.Event]) -> object:
        import yaml

        for event in events:
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                self._refuse(event, "uses an anchor or an alias; write the value out")
            if tag := getattr(event, "tag", None):
                self._refuse(event, f"uses the tag {shown(tag)}; remove it")
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._open(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            elif isinstance(event, yaml.CollectionEndEvent):
                value, _ = self.stack.pop()
                self.keys.pop()
                self._add(value)
            elif isinstance(event, yaml.DocumentStartEvent) and self.documents:
                self._refuse(event, "starts a second document; a file holds one")
        if not self.documents:
            raise DocumentError("1:1", "is empty; the file may be cut off", self.source)
        return self.documents[0]

    def _refuse(self, event: yaml.Event, problem: str) -> NoReturn:
        mark = event.start_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "document"
        raise DocumentError(place, problem, self.source)

    def _place(self) -> str:
        """The path of the value that comes next."""
        if not self.stack:
            return ""
        container, place = self.stack[-1]
        return child(place, len(container) if isinstance(container, list) else self.keys[-1] or "")

    def _open(self, event: yaml.Event, value: list[Any] | dict[str, Any]) -> None:
        if self._expects_key():
            self._refuse(event, "uses a list or an object as a key; keys are words")
        if len(self.stack) >= MAX_DEPTH:
            self._refuse(event, f"is nested deeper than {MAX_DEPTH} levels; no document of ours is")
        self.stack.append((value, self._place()))
        self.keys.append(None)

    def _expects_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1][0], dict) and self.keys[-1] is None

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        if self._expects_key():
            container, place = self.stack[-1]
            if event.value in container:
                raise DocumentError(
                    place or "document", f"has the key {shown(event.value)} twice; keep one of them", self.source
                )
            self.keys[-1] = event.value
        else:
            self._add(self._resolve(event.value) if event.implicit[0] else event.value)

    def _add(self, value: object) -> None:
        if not self.stack:
            self.documents.append(value)
        elif isinstance(container := self.stack[-1][0], list):
            container.append(value)
        else:
            key = self.keys[-1]
            assert key is not None
            container[key] = value
            self.keys[-1] = None

    def _resolve(self, text: str) -> object:
        """A plain scalar as YAML 1.2's core schema reads it, with JSON's limits on numbers."""
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            if len(text) > 17 or abs(int(text)) > MAX_INTEGER:
                self._number_fault(f"is {shown(text)[1:-1]}, an integer beyond ±(2**53 − 1)")
            return int(text)
        if _NUMBER.fullmatch(text):
            if not math.isfinite(float(text)):
                self._number_fault(f"is {shown(text)[1:-1]}, which overflows; numbers are finite")
            return float(text)
        if text.lower().lstrip("+-") in (".inf", ".nan"):
            self._number_fault(f"is {text}; numbers are finite")
        return text

    def _number_fault(self, problem: str) -> None:
        raise DocumentError(self._place() or "document", problem, self.source)
