"""The interpreter of JSON Schema that checks the form of schedules and certificates.

`schedule.schema.json`, in this folder, is exported from the models of the loader, and `claims.py` has the schema of a
certificate. Types, ranges, words, closed objects and defaults are defined there, and nowhere else in the checker.
Premises of proofs that a schema cannot express are checked in `schedule.py` and by each claim.

The interpreter checks *columns*: all values at one place of the schema, at once, because files hold millions of groups.
If a column does not fit, its values are checked one by one, to name the place of the first that does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

from .refusal import Refusal, require

Schema = dict[str, Any]

SCHEMA: Schema = json.loads(Path(__file__).with_name("schedule.schema.json").read_text(encoding="utf-8"))
ONE_FORM = "`partreduce verify FILE --export NEW` writes a file in the one form that is read here"
WORDS = {
    "array": (list, "a list"),
    "boolean": (bool, "true or false"),
    "integer": (int, "an integer"),
    "null": (type(None), "null"),
    "object": (dict, "an object"),
    "string": (str, "a text"),
}
"""For each type of the schema, its class in Python and its name in messages."""


def with_defaults(value: dict[str, Any], schema: Schema = SCHEMA) -> dict[str, Any]:
    """Return an object that fits the schema with missing defaults added, also to objects and lists inside it."""
    result = {}
    for name, part in _nearest(_of_type(_resolve(schema), value, ""), value)["properties"].items():
        if name in value or "default" in part:
            given, form = value.get(name, part.get("default")), _resolve(part)
            items = _resolve(form.get("items", {}))
            if isinstance(given, dict):
                given = with_defaults(given, form)
            elif isinstance(given, list) and items.get("type") == "object":
                given = [with_defaults(item, items) for item in given]
            result[name] = given
    return result


def hold(column: list[Any], schema: Schema, place: str) -> None:
    """Raise a Refusal unless all values in `column`, those at path `place`, fit the schema and leave defaults out."""
    schema = _resolve(schema)
    if not column:
        return
    if _alternatives(schema):
        for form, values in _split(column, schema, place):
            hold(values, form, place)
        return
    if "const" in schema or "enum" in schema:
        words = schema.get("enum", [schema.get("const")])
        for value in column:
            as_choice(value, place or "schedule", words)
        return
    kind = schema["type"]
    fits = set(map(type, column)) == {WORDS[kind][0]}
    if kind == "integer":  # a range is asked of the least and the largest
        low, high = schema["minimum"], schema["maximum"]
        fits = fits and low <= min(column) and max(column) <= high
        require(fits, place, f"must be an integer {low}..{high}")
    require(fits, place or "schedule", f"must be {WORDS[kind][1]}")
    if kind == "array" and "items" in schema:
        _hold_lists(column, schema, place)
    elif kind == "object" and "properties" in schema:
        _hold_objects(column, schema, place)
    elif kind == "string":
        low, high, pattern = schema.get("minLength", 0), schema.get("maxLength", inf), schema.get("pattern", "")
        for text in set(column):
            require(low <= len(text) <= high, place, f"must have {low} to {high} characters")
            require(not pattern or re.fullmatch(pattern, text), place, "must be an integer or a fraction such as 4/3")


def as_choice(value: object, place: str, choices: Sequence[object]) -> None:
    """Raise a Refusal unless the value is one of the constants and of its exact type: 1 is neither `true` nor "1"."""
    fits = any(type(value) is type(choice) and value == choice for choice in choices)
    require(fits, place, f"must be one of {list(choices)}")


def _hold_lists(column: list[list[Any]], schema: Schema, place: str) -> None:
    low, high = schema.get("minItems", 0), schema.get("maxItems", inf)
    size = str(low) if low == high else f"{low} to {high}"
    require(all(low <= length <= high for length in set(map(len, column))), place, f"must hold {size} items")
    try:
        hold(list(chain.from_iterable(column)), schema["items"], place)
    except Refusal:
        if len(column) == 1:
            for number, item in enumerate(column[0]):
                hold([item], schema["items"], f"{place}[{number}]")
        raise


def _hold_objects(column: list[dict[str, Any]], schema: Schema, place: str) -> None:
    known, needed = schema["properties"], schema.get("required", ())
    shapes = set(map(tuple, column))
    for members in shapes:
        unknown = [name for name in members if name not in known]
        missing = [name for name in needed if name not in members]
        require(not unknown, place or "schedule", f"has unknown keys {unknown[:3]}"[:200])
        require(not missing, place or "schedule", f"lacks {missing[:3]}")
    for name in filter(set().union(*shapes).__contains__, known):
        at, part = f"{place}.{name}" if place else name, known[name]
        having = column if name in needed else [one for one in column if name in one]
        values = list(map(itemgetter(name), having))
        hold(values, part, at)
        is_said = "default" in part and part["default"] in values  # of the same type, as was just seen
        require(not is_said, at, f"is the default, which is left out; {ONE_FORM}")


def _split(column: list[Any], schema: Schema, place: str) -> Iterator[tuple[Schema, list[Any]]]:
    """Yield each alternative of a schema with the values of the column that belong to it."""
    for kind in set(map(type, column)):
        values = [value for value in column if type(value) is kind]
        typed = _of_type(schema, values[0], place)
        yield from [(typed[0], values)] if len(typed) == 1 else [(_nearest(typed, value), [value]) for value in values]


def _alternatives(schema: Schema) -> list[Schema]:
    """Return the alternatives (anyOf, oneOf) of a schema, nested ones expanded; empty if it has none."""
    forms = map(_resolve, schema.get("anyOf") or schema.get("oneOf", ()))
    return [one for form in forms for one in (_alternatives(form) or [form])]


def _of_type(schema: Schema, value: object, place: str) -> list[Schema]:
    """Return the alternatives of a schema, or itself, that allow a value's type; raise a Refusal if none does."""
    forms = _alternatives(schema) or [schema]
    typed = [form for form in forms if type(value) is WORDS[form["type"]][0]]
    require(typed, place, "must be " + " or ".join(dict.fromkeys(WORDS[form["type"]][1] for form in forms)))
    return typed


def _nearest(forms: list[Schema], value: Any) -> Schema:  # noqa: ANN401 - parsed JSON
    """Return the schema that an object violates least, by missing keys and different constants; the first if equal."""

    def distance(form: Schema) -> int:
        words = {name: part["const"] for name, part in form["properties"].items() if "const" in part}
        missing = [name for name in form["required"] if name not in value]
        return len(missing) + len([name for name, word in words.items() if value.get(name) != word])

    return min(forms, key=distance) if len(forms) > 1 else forms[0]


def _resolve(schema: Schema) -> Schema:
    """Return a schema, or the definition to which its `$ref` refers."""
    name = schema.get("$ref")
    return _resolve(SCHEMA["$defs"][name.removeprefix("#/$defs/")]) if name else schema
