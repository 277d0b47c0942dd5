"""DiLoCo schedules as settings of MaxText, torchft and torchtitan: the way back of `diloco`, by the same words.

What was written is read again, and has to give the same strategy: so what a program has no word for, and what its code
makes of a word (MaxText's rounding, torchft's divisions), is refused and never written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from partreduce.schedulers.entry import hint
from partreduce.schedulers.imports import diloco
from partreduce.schedulers.imports.diloco import Words
from partreduce.schedulers.imports.exact import notes
from partreduce.topo.errors import DocumentError, InputError, MissingFeatureError, RefutedError, ScheduleError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Strategy

Members = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Program:
    """Its words, what it wants beside them, how it writes them down, and the importer's reader."""

    words: Words
    more: Callable[[Schedule], Members]
    text: Callable[[Mapping[str, Any]], str]
    read: Callable[..., Schedule]


def formats() -> list[str]:
    """The names that `export_schedule` takes."""
    return list(_PROGRAMS)


def export_schedule(schedule: Schedule, format: str) -> str:  # noqa: A002 - the word that users expect
    """The content of a file of that program, in which every worker is a replica.

    Raises:
        InputError: an unknown format.
        MissingFeatureError: the program cannot do what the schedule says; the message names the place.
    """
    program = _PROGRAMS.get(format)
    if program is None:
        raise InputError(f"--format {format!r}: write one of {', '.join(_PROGRAMS)}{hint(format, _PROGRAMS)}")
    strategy = schedule.strategy
    if not strategy.averages_everyone or strategy.averages_gradients or not isinstance(strategy.pace, int):
        raise MissingFeatureError(
            f"{schedule.name}: {format} takes only outer steps of all workers after equally many steps; this is "
            f"strategy {strategy.kind!r} with pace {strategy.pace}"
        )
    text = program.text(_members(strategy, program.words) | program.more(schedule))
    try:
        with notes():
            meant = program.read(text.encode(), format, cluster=schedule.cluster).strategy
    except (DocumentError, RefutedError, ScheduleError) as error:
        raise MissingFeatureError(f"{schedule.name}: {format} cannot run this: {error}") from None
    if lost := _lost(strategy, meant):
        raise MissingFeatureError(f"{schedule.name}: {format} has no settings for its {lost}")
    return text


def _members(strategy: Strategy, words: Words) -> Members:
    found: Members = {words.every: strategy.pace}
    if strategy.takes_turns:
        found |= {
            words.fragments: strategy.what.num_fragments,
            words.delay: strategy.when.late_steps,
            words.alpha: float(strategy.when.kept),
        }
    return found


def _lost(strategy: Strategy, meant: Strategy) -> str:
    """Where two strategies differ, with the first one's value; empty if they are the same but for the form of sums.

    Which form a sum has is the program's own choice, and changes no number.
    """
    places: dict[str, Callable[[Strategy], object]] = {
        "pace": lambda one: one.pace,
        "when": lambda one: one.when,
        "what.outer": lambda one: one.what.outer,
        "what.fragments": lambda one: one.what.fragments,
        "what": lambda one: one.what,
        "how.codec": lambda one: one.how.codec,
        "averaging": lambda one: one.averaging,
    }
    for place, value in places.items():
        if (ours := value(strategy)) != value(meant):
            return f"{place}, which is {getattr(ours, 'in_words', ours)}"
    return ""


def _of_maxtext(schedule: Schedule) -> Members:
    outer, streams = schedule.strategy.what.outer, schedule.strategy.takes_turns
    return {
        "enable_diloco": True,
        **({"enable_streaming_diloco": True} if streams else {}),
        "diloco_outer_lr": float(outer.lr),
        "diloco_outer_momentum": float(outer.momentum),
        "dcn_diloco_parallelism": schedule.num_workers,
    }


def _of_torchft(schedule: Schedule) -> Members:
    outer = schedule.strategy.what.outer
    numbers = {"lr": float(outer.lr), "momentum": float(outer.momentum), "nesterov": outer.nesterov}
    return {"outer_optimizer": numbers, "num_replicas": schedule.num_workers}


def _of_torchtitan(schedule: Schedule) -> Members:
    what = schedule.strategy.what
    method = "local_sgd" if what.outer.is_plain else "diloco"
    named = what.fragments if isinstance(what.fragments, tuple) else ()
    modules = [[pattern.removesuffix(".*") for pattern in fragment] for fragment in named]
    return {
        "enable": True,
        "semi_sync_method": method,
        "group_size": schedule.num_workers,
        **({"module_fqns_per_model_fragment": modules} if modules else {}),
    }


def _yaml(members: Mapping[str, Any]) -> str:
    """A line a setting, whose value as JSON is one in YAML."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in members.items())


def _toml(members: Mapping[str, Any]) -> str:
    """The table, whose values as JSON are those of TOML."""
    return "[fault_tolerance]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in members.items())


def _json(members: Mapping[str, Any]) -> str:
    return json.dumps(members, indent=2) + "\n"


_PROGRAMS = {
    "maxtext": _Program(diloco.MAXTEXT_WORDS, _of_maxtext, _yaml, diloco.read_maxtext),
    "torchft": _Program(diloco.TORCHFT_WORDS, _of_torchft, _json, diloco.read_torchft),
    "torchtitan": _Program(diloco.TORCHTITAN_WORDS, _of_torchtitan, _toml, diloco.read_torchtitan),
}
