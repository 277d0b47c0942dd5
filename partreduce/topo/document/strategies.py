"""Convert strategies from and to documents; pydantic validates JSON directly into the frozen dataclasses.

A `Kind` describes members with another form in documents than in the dataclass: the phases of `static` and the rounds
of `neighbor`, which are read array by array. The member `sync` has another form, too; all others equal the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pydantic import BaseModel

from partreduce.topo.closed_model import adapter, as_tuples, dump_fields, read_value, translate_errors, unknown
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.phases import (
    GRAPH_MODELS,
    STATIC_MODELS,
    dump_phases,
    dump_rounds,
    load_phases,
    load_rounds,
)
from partreduce.topo.errors import DocumentError
from partreduce.topo.place import child, format_value
from partreduce.topo.renamed import renamed_key, renamed_value
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedAveraging, DelayedMerge, Pipeline, Sync
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import StaticGroups

Raw = dict[str, Any]
"""A parsed JSON object."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How documents hold one kind of strategy.

    `value` is its dataclass. Documents hold the field named `bulk` as the members `keys`: `load(raw, cluster, place)`
    builds the field, `dump(value)` returns the members, and `models` describe them for the JSON Schema, one for each
    form. `canonical` sorts the lists of the JSON object whose order has no meaning.
    """

    value: type[Strategy]
    bulk: str = ""
    keys: tuple[str, ...] = ()
    load: Callable[[Raw, Cluster, str], Any] | None = None
    dump: Callable[[Any], Raw] | None = None
    models: tuple[type[BaseModel], ...] = ()
    canonical: Callable[[Raw], Raw] = lambda dumped: dumped


def _ascending_sides(dumped: Raw) -> Raw:
    """Return a `pairwise` JSON object with active ranks, the two ranks of each edge, and edges in ascending order."""
    result = dumped | {"active": sorted(dumped["active"])}
    if "edges" in dumped:
        result["edges"] = sorted(sorted(edge) for edge in dumped["edges"])
    return result


KINDS: dict[str, Kind] = {
    kind.value.kind: kind
    for kind in (
        Kind(StaticGroups, "phases", ("node_radices", "phases"), load_phases, dump_phases, STATIC_MODELS),
        Kind(AllReduce),
        Kind(NeighborAveraging, "rounds", ("rounds",), load_rounds, dump_rounds, GRAPH_MODELS),
        Kind(DynamicGroups),
        Kind(Pairwise, canonical=_ascending_sides),
        Kind(Server),
    )
}
"""Every kind of strategy that a document may hold. A new kind needs its dataclass and one line here."""


def load_strategy(raw: Raw, cluster: Cluster, place: str) -> Strategy:
    """Build a Strategy for `cluster` from its JSON object at path `place`; raise DocumentError for invalid members."""
    kind = _kind_of(raw, place)
    known = ["kind", *(field.name for field in fields(kind.value) if field.name != kind.bulk), *kind.keys]
    for key in raw:
        if key not in known:
            raise DocumentError(place, unknown(key, known))
    members = {key: as_tuples(value) for key, value in raw.items() if key != "kind" and key not in kind.keys}
    if "sync" in raw:
        members["sync"] = load_sync(raw["sync"], child(place, "sync"))
    if kind.load is not None:
        members[kind.bulk] = kind.load(raw, cluster, place)
    with translate_errors(raw, place):
        strategy: Strategy = adapter(kind.value).validate_python(members)
    return strategy


def _kind_of(raw: Raw, place: str) -> Kind:
    name = raw.get("kind")
    if name is None:
        raise DocumentError(place, f'the key "kind" is missing; known kinds: {", ".join(KINDS)}')
    if not isinstance(name, str):
        raise DocumentError(child(place, "kind"), f"is {format_value(name)}; it must be one of {', '.join(KINDS)}")
    if name not in KINDS:
        raise DocumentError(child(place, "kind"), unknown(name, KINDS, "kind"))
    return KINDS[name]


def dump_strategy(strategy: Strategy) -> Raw:
    """Return a strategy's JSON object in canonical form; phases of explicit groups are still `Phase` values."""
    kind = KINDS[strategy.kind]
    result: Raw = {"kind": strategy.kind}
    for part in fields(strategy):
        value = getattr(strategy, part.name)
        if part.name == "steps_per_round" and isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if part.name == kind.bulk and kind.dump is not None:
            result |= kind.dump(value)
        elif part.default is MISSING or value != part.default:
            result[part.name] = {value.word: _plain(value)} if part.name == "sync" else _plain(value)
    return kind.canonical(result)


Wait = DelayedMerge | Pipeline | IterationGap | PartialAllReduce
WAITS: dict[str, type[Wait]] = {value.word: value for value in (DelayedMerge, Pipeline, IterationGap, PartialAllReduce)}
"""The classes of `sync` values with settings, by their word; documents hold them as `{word: {settings}}`."""


def load_sync(raw: object, place: str) -> Sync:
    """Read `sync` at path `place`: `"synchronous"` or an object such as `{"delay": 1}`; else raise DocumentError."""
    if raw == "synchronous":
        return SYNCHRONOUS
    if isinstance(raw, dict) and list(raw) == ["delay"]:
        if type(raw["delay"]) is not int or raw["delay"] != 1:
            raise DocumentError(
                child(place, "delay"), f"is {format_value(raw['delay'])}; an averaging is late by 1 round"
            )
        return DelayedAveraging()
    if isinstance(raw, dict) and len(raw) == 1 and (wait := WAITS.get(*raw)) is not None:
        members, place = raw[wait.word], child(place, wait.word)
        if wait is PartialAllReduce and isinstance(members, dict):
            quorum = members.get("quorum", 2)
            is_count = type(quorum) is int and quorum > 0
            if not is_count and quorum not in list(QuorumStart):  # pydantic would report one error per form
                words = " or ".join(f'"{word}"' for word in QuorumStart)
                problem = f"is {format_value(quorum)}; it must be {words}, or a number of workers"
                raise DocumentError(child(place, "quorum"), problem)
        return read_value(wait, members, place)
    if isinstance(raw, dict) and len(raw) == 1:
        renamed = renamed_key(next(iter(raw)), ("delay", *WAITS))
    else:
        renamed = renamed_value("sync", raw)
    if renamed:
        raise DocumentError(place, renamed)
    known = '"synchronous", {"delay": 1}, {"merge": {"steps": 2}}, {"pipeline": {}}, {"iteration_gap": {}} or '
    known += '{"partial": {"quorum": "solo"}}'
    raise DocumentError(place, f"is {format_value(raw)}; it must be {known}")


def sync_schema() -> dict[str, Any]:
    """Return the JSON Schema of the member `sync`."""
    return {
        "anyOf": [
            {"const": "synchronous", "type": "string"},
            _one_member("delay", {"const": 1, "type": "integer"}),
            *(_one_member(word, _describe_schema(value)) for word, value in WAITS.items()),
        ],
        "description": "How long a round waits for its averaging, and how late that may come.",
    }


def _describe_schema(value: type[Wait]) -> dict[str, Any]:
    schema = adapter(value).json_schema(ref_template="#/$defs/{model}")  # type: ignore[arg-type]  # classes are hashable
    schema.pop("title", None)
    return schema | {"description": first_paragraph(value)}


def first_paragraph(value: type) -> str:
    """Return the first paragraph of a class's docstring on one line."""
    return " ".join((value.__doc__ or "").split("\n\n")[0].split())


def _one_member(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": False, "properties": {name: schema}, "required": [name], "type": "object"}


def _plain(value: object) -> object:
    """Return a field's value as JSON: tuples as lists, enumerations as strings, objects without default values."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int) or value is None:
        return value
    return value.rounds if isinstance(value, DelayedAveraging) else dump_fields(value)
