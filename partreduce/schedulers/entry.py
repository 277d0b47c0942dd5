"""Entries of the catalogue and their parameters: `Entry` describes a family of schedules and builds its members."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Strategy

Value = int | float | str | tuple[int, ...] | None
"""The value of a parameter; None means that the entry chooses a value for the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a catalogue entry; `parse` turns text, as from a command line, into a typed value.

    `kind` is `int`, `float`, `text` (one of `choices`) or `ints` (a list such as `2,2`). A default of None means that
    the value is chosen for the cluster as `help` describes.
    """

    name: str
    help: str
    kind: Literal["int", "float", "text", "ints"] = "int"
    default: Value = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, value: object) -> Value:
        if value is None or (isinstance(value, str) and value.strip().lower() == "auto" and self.default is None):
            if self.default is None:
                return None
            raise ScheduleError(f"{self.name}: needs a value; {self.help}")
        parsed = self._typed(value)
        for number in parsed if isinstance(parsed, tuple) else (parsed,):
            if isinstance(number, str):
                continue
            if self.minimum is not None and not number >= self.minimum:
                raise ScheduleError(f"{self.name}: is {number}; the least possible value is {self.minimum:g}")
            if self.maximum is not None and not number <= self.maximum:
                raise ScheduleError(f"{self.name}: is {number}; the greatest possible value is {self.maximum:g}")
        return parsed

    def _typed(self, value: object) -> int | float | str | tuple[int, ...]:
        text = str(value).strip()
        if self.kind == "text":
            if text not in self.choices:
                raise ScheduleError(
                    f"{self.name}: {text!r} is not one of {', '.join(self.choices)}{hint(text, self.choices)}"
                )
            return text
        if self.kind == "ints":
            parts = list(value) if isinstance(value, (list, tuple)) else re.split(r"[,x]", text)
            if not all(re.fullmatch(r"[0-9]{1,10}", str(part).strip()) for part in parts):
                raise ScheduleError(f"{self.name}: {text!r} is not a list of whole numbers such as 2,2")
            return tuple(int(str(part)) for part in parts)
        pattern = (
            r"[+-]?[0-9]{1,18}" if self.kind == "int" else r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
        )
        if isinstance(value, bool) or not re.fullmatch(pattern, text):
            wanted = "a whole number of at most 18 digits" if self.kind == "int" else "a number"
            raise ScheduleError(f"{self.name}: {text!r} is not {wanted}")
        return int(text) if self.kind == "int" else float(text)


SEED = Parameter(name="seed", default=0, minimum=0, help="seed of the random draw")
"""The seed parameter of all entries that draw at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A family of schedules in the catalogue, and how to build its member for a cluster.

    `kind` is the form of its schedules. `make(cluster, **parameters)` builds the strategy; `unsupported_reason(cluster,
    **parameters)` returns a sentence that says why that is impossible and names the nearest possible cluster, or None.
    `partreduce design --list` prints `condition` (on the cluster), `degree` (messages a worker sends per round),
    `period` (rounds in a period) and the known `metrics`.
    """

    name: str
    summary: str
    source: str
    kind: Literal["rule", "groups", "graph", "rounds", "allreduce", "outer"]
    make: Callable[..., Strategy]
    unsupported_reason: Callable[..., str | None] = lambda _, **__: None
    parameters: tuple[Parameter, ...] = ()
    condition: str = "any cluster"
    degree: str = ""
    period: str = ""
    metrics: str = ""

    def resolve(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Return all parameters by name with typed values: those `given` (text or values), defaults for the others.

        Raises ScheduleError for an unknown name or an invalid value.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {name: parameter.default for name, parameter in known.items()}
        for raw, value in given.items():
            name = raw.replace("-", "_")
            if name not in known:
                choice = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
                raise ScheduleError(f"{self.name}: no parameter {raw!r}; {choice}{hint(name, known)}")
            try:
                values[name] = known[name].parse(value)
            except ScheduleError as error:
                raise ScheduleError(f"{self.name}: {error}") from None
        return values

    def why_not(self, cluster: Cluster, **parameters: object) -> str | None:
        """Return why the family has no member for the cluster, or None; raise ScheduleError for a wrong parameter."""
        values = self.resolve(parameters)
        if cluster.num_workers < 2:
            return "there is 1 worker and no other to average with; the smallest cluster has 2 workers"
        return self.unsupported_reason(cluster, **values)

    def build(self, cluster: Cluster, **parameters: object) -> Schedule:
        values = self.resolve(parameters)
        if reason := self.why_not(cluster, **parameters):
            raise ScheduleError(f"{self.name} on {cluster}: {reason}")
        return Schedule(self.label(**values), cluster, self.make(cluster, **values))

    def label(self, **values: Value) -> str:
        """Return the schedule's name: the entry's name, followed by every parameter that differs from its default."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        shown = [f"{key}={_written(value)}" for key, value in values.items() if value != defaults[key]]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


def hint(word: str, known: Iterable[str]) -> str:
    """Return the text `; did you mean …?` with the one or two known words closest to `word`; "" if none is close."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.55)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _written(value: Value) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
