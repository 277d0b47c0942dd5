"""Strategies to and from documents: pydantic validates straight onto the frozen values; this is the registry of kinds.

What a document holds in another shape than the value is spelled out in its `Kind`: the phases of `static`, the rounds
of `neighbor` (both read array by array) and the *when* axis. Everything else is described once, on the value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from partreduce.topo.cluster import Cluster
from partreduce.topo.document.model import located, unknown
from partreduce.topo.document.phases import STATIC_MODELS, canonical_phases, dump_phases, load_phases
from partreduce.topo.document.place import child, shown
from partreduce.topo.document.rounds import GRAPH_MODELS, dump_rounds, load_rounds
from partreduce.topo.errors import DocumentError
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import LOCKSTEP, How, Late, Merge, Pipeline, When
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.gap import Gap, Skip
from partreduce.topo.strategies.generated import Generated
from partreduce.topo.strategies.neighbor import Neighbor
from partreduce.topo.strategies.outer import Outer
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.strategies.routes import Route, Routes
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import Static

Raw = dict[str, Any]
"""A parsed JSON object."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How documents hold one kind.

    `bulk` names the value's field that documents hold in the members `keys`; `load(raw, cluster, place)` builds that
    field, `dump(value)` gives its members back, and `models` describe them for the JSON Schema (several where the kind
    has several forms). `canonical` brings what has no order of its own into one order.
    """

    value: type[Strategy]
    bulk: str = ""
    keys: tuple[str, ...] = ()
    load: Callable[[Raw, Cluster, str], Any] | None = None
    dump: Callable[[Any], Raw] | None = None
    models: tuple[type[BaseModel], ...] = ()
    canonical: Callable[[Raw], Raw] = lambda dumped: dumped

    def known_keys(self) -> list[str]:
        """All members that an object of this kind may have."""
        own = [field.name for field in fields(self.value) if field.name != self.bulk]
        return ["kind", *own, *self.keys]


def _ascending_sides(dumped: Raw) -> Raw:
    """Active ranks ascend; an edge starts with its lower rank, and edges ascend."""
    result = dumped | {"active": sorted(dumped["active"])}
    if "edges" in dumped:
        result["edges"] = sorted(sorted(edge) for edge in dumped["edges"])
    return result


KINDS: dict[str, Kind] = {
    kind.value.kind: kind
    for kind in (
        Kind(Static, "phases", ("node_radices", "phases"), load_phases, dump_phases, STATIC_MODELS, canonical_phases),
        Kind(AllReduce),
        Kind(Neighbor, "rounds", ("rounds",), load_rounds, dump_rounds, GRAPH_MODELS),
        Kind(Generated),
        Kind(Pairwise, canonical=_ascending_sides),
        Kind(Server),
    )
}
"""Every kind that a document may hold. A new kind is its value and one line here."""


def load_strategy(raw: Raw, cluster: Cluster, place: str) -> Strategy:
    """The strategy of a parsed object.

    Raises:
        DocumentError: the first member that breaks the format, with its place.
    """
    kind = _kind_of(raw, place)
    _check_keys(raw, kind.known_keys(), place)
    _check_keys(raw.get("how"), [field.name for field in fields(How)], child(place, "how"))
    members = {key: _tuples(value) for key, value in raw.items() if key != "kind" and key not in kind.keys}
    if "what" in raw:
        members["what"] = _load_what(raw["what"], child(place, "what"))
    if "when" in raw:
        members["when"] = _load_when(raw["when"], child(place, "when"))
    if kind.load is not None:
        members[kind.bulk] = kind.load(raw, cluster, place)
    with located(raw, place):
        strategy: Strategy = _adapter(kind.value).validate_python(members)
    return strategy


def _check_keys(raw: object, known: list[str], place: str) -> None:
    for key in raw if isinstance(raw, dict) else ():
        if key not in known:
            raise DocumentError(place, unknown(key, known))


def _kind_of(raw: Raw, place: str) -> Kind:
    name = raw.get("kind")
    if name is None:
        raise DocumentError(place, f'the key "kind" is missing; known kinds: {", ".join(KINDS)}')
    if not isinstance(name, str):
        raise DocumentError(child(place, "kind"), f"is {shown(name)}; it must be one of {', '.join(KINDS)}")
    if name not in KINDS:
        raise DocumentError(child(place, "kind"), unknown(name, KINDS, "kind"))
    return KINDS[name]


def dump_strategy(strategy: Strategy) -> Raw:
    """The object of a strategy, without members that equal their default. Explicit phases stay `Phase` values."""
    kind = KINDS[strategy.kind]
    result: Raw = {"kind": strategy.kind}
    for part in fields(strategy):
        value = getattr(strategy, part.name)
        if part.name == kind.bulk and kind.dump is not None:
            result |= kind.dump(value)
        elif part.default is MISSING or value != part.default:
            result[part.name] = _dump_when(value) if part.name == "when" else _plain(value)
    return result


def _load_what(raw: object, place: str) -> Routes:
    """Which tables go their own way, as an object with a list of them, and what is made of all else's mean."""
    if not isinstance(raw, dict):
        raise DocumentError(place, f'is {shown(raw)}; it must be an object such as {{"tables": []}}')
    _check_keys(raw, [field.name for field in fields(Routes)], place)
    _check_keys(raw.get("outer"), [field.name for field in fields(Outer)], child(place, "outer"))
    tables = raw.get("tables")
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        _check_keys(table, [field.name for field in fields(Route)], f"{child(place, 'tables')}[{index}]")
    with located(raw, place):
        routes: Routes = _adapter(Routes).validate_python(_tuples(raw))
    return routes


@dataclass(frozen=True, slots=True)
class Wait:
    """How documents hold a value of the *when* axis that has members: `{word: {members}}`.

    `like` says what an object of it is, for who wrote none; `inner` are members that are objects themselves.
    """

    value: type[Merge | Pipeline | Gap | Quorum]
    like: str
    inner: dict[str, type] = field(default_factory=dict)


WAITS: dict[str, Wait] = {
    wait.value.word: wait
    for wait in (
        Wait(Merge, 'an object such as {"steps": 2, "alpha": "1/2"}'),
        Wait(Pipeline, "an object, {} for a pipeline 2 wide"),
        Wait(Gap, "an object, {} for Hop's standard setting", {"skip": Skip}),
        Wait(Quorum, 'an object such as {"quorum": "solo"}'),
    )
}


def _load_when(raw: object, place: str) -> When:
    """`"lockstep"`, or an object of one member such as `{"late": 1}` or `{"pipeline": {}}`."""
    if raw == "lockstep":
        return LOCKSTEP
    if isinstance(raw, dict) and list(raw) == ["late"]:
        if type(raw["late"]) is not int or raw["late"] != 1:
            raise DocumentError(child(place, "late"), f"is {shown(raw['late'])}; an averaging is late by 1 round")
        return Late()
    if isinstance(raw, dict) and len(raw) == 1 and (wait := WAITS.get(*raw)) is not None:
        return _load_members(wait, raw[wait.value.word], child(place, wait.value.word))
    known = '"lockstep", {"late": 1}, {"merge": {"steps": 2}}, {"pipeline": {}}, {"gap": {}} or '
    known += '{"quorum": {"quorum": "solo"}}'
    raise DocumentError(place, f"is {shown(raw)}; it must be {known}")


def _load_members(wait: Wait, raw: object, place: str) -> When:
    if not isinstance(raw, dict):
        raise DocumentError(place, f"is {shown(raw)}; it must be {wait.like}")
    _check_keys(raw, [field.name for field in fields(wait.value)], place)
    for name, inner in wait.inner.items():
        _check_keys(raw.get(name), [field.name for field in fields(inner)], child(place, name))
    if wait.value is Quorum:
        _check_quorum(raw.get("quorum", 2), child(place, "quorum"))
    with located(raw, place):
        when: When = _adapter(wait.value).validate_python({key: _tuples(value) for key, value in raw.items()})
    return when


def _check_quorum(raw: object, place: str) -> None:
    """A word or a number: of two forms pydantic would say why it is neither."""
    if type(raw) is not int and raw not in list(QuorumStart):
        words = " or ".join(f'"{word}"' for word in QuorumStart)
        raise DocumentError(place, f"is {shown(raw)}; it must be {words}, or a number of workers")


def _dump_when(when: When) -> object:
    if when.word in WAITS:
        return {when.word: _plain(when)}
    return {"late": when.rounds} if isinstance(when, Late) else "lockstep"


def when_schema() -> dict[str, Any]:
    """How documents hold the *when* axis, as a JSON Schema."""
    return {
        "anyOf": [
            {"const": "lockstep"},
            _one_member("late", {"const": 1, "type": "integer"}),
            *(_one_member(word, _described(wait.value)) for word, wait in WAITS.items()),
        ],
        "default": "lockstep",
        "description": "How long a round waits for its averaging, and how late that may come.",
    }


def _described(value: type[Merge | Pipeline | Gap | Quorum]) -> dict[str, Any]:
    """The JSON Schema of a value, with the first paragraph of its docstring."""
    schema = _adapter(value).json_schema(ref_template="#/$defs/{model}")
    schema.pop("title", None)
    schema["description"] = " ".join((value.__doc__ or "").split("\n\n")[0].split())
    return schema


def _one_member(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": False, "properties": {name: schema}, "required": [name], "type": "object"}


@lru_cache
def _adapter(value: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a class of values
    """What reads and writes the values of a class; made once, for pydantic takes milliseconds over it."""
    return TypeAdapter(value)


def _tuples(value: object) -> object:
    """Values hold tuples where documents hold lists."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: object) -> object:
    """A field's value as documents hold it: lists, words, and objects without members that equal their default."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int) or value is None:
        return value
    kind: Any = type(value)
    dumped: object = _adapter(kind).dump_python(value, mode="json", exclude_defaults=True)
    return dumped
