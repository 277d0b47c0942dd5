"""Import DiLoCo settings of torchft, torchtitan and MaxText: their meaning, claims about them, and the schedule.

Sources: torchft's `local_sgd.py` (0.2.0), torchtitan's `experiments/ft/config/job_config.py`, MaxText's
`trainers/diloco` and `configs/types.py` (August 2026). Streaming DiLoCo (Douillard et al., arXiv 2501.18512) cuts the
model into P fragments; at constant intervals one of them is sent, and merged τ steps later as
α · own + (1 - α) · global.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from partreduce.schedulers.imports.exact import current_notes
from partreduce.topo.closed_model import unknown
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import parse_json
from partreduce.topo.document.yaml_reader import parse_yaml
from partreduce.topo.errors import DocumentError, RefutedError, ScheduleError
from partreduce.topo.place import child, format_value
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import SYNCHRONOUS, DelayedMerge
from partreduce.topo.strategies.payload import OuterStep, Payload

MEGABYTE = 2**20


MAXTEXT = {
    "enable_diloco": False,
    "enable_streaming_diloco": False,
    "diloco_sync_period": 36,
    "diloco_outer_lr": 0.3,
    "diloco_outer_momentum": 0.9,
    "num_diloco_fragments": None,
    "num_communication_overlapping_steps": 0,
    "communication_overlapping_alpha": 0.0,
    "dcn_diloco_parallelism": 1,
    "ici_diloco_parallelism": 1,
}
"""Defaults of MaxText's base.yml."""
TORCHTITAN: dict[str, Any] = {
    "enable": False,
    "semi_sync_method": None,
    "sync_steps": 5,
    "num_fragments": 1,
    "module_fqns_per_model_fragment": [],
    "fragment_sync_delay": 0,
    "fragment_update_alpha": 0.0,
    "group_size": 0,
}
"""Defaults of torchtitan's `[fault_tolerance]`.

Its code fixes the outer optimizer: SGD with learning rate 0.7 and Nesterov momentum 0.9.
"""
TORCHFT = {
    "sync_every": None,
    "model_fragments": 1,
    "fragment_sync_delay": 0,
    "fragment_update_alpha": 0.0,
    "outer_optimizer": None,
    "use_bucketization": False,
    "bucket_cap_mb": 1024,
    "element_size": 4,
    "num_replicas": None,
}
"""Arguments of torchft's `DiLoCo` and their defaults.

`model_fragments` is the number of fragments, or a list with the sizes of each fragment's tensors.
"""


Row = tuple[str, str, str]
"""A row of a table: (setting, value, meaning), or (claim about the settings, status, reason)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """DiLoCo settings of another tool, in common terms: every `spacing` steps one fragment (part of the model) is sent.

    It is merged `delay` steps later, with the share `alpha` of the local value. `requested` is the number of steps
    between two averages of a fragment according to the file (`period` is the real one), `outer` the outer optimizer,
    `num_replicas` the number of workers (0: not known), `coverage` the claim that every tensor is sent.
    """

    program: str
    requested: int
    num_fragments: int
    spacing: int
    delay: int
    alpha: Fraction
    outer: OuterStep
    num_replicas: int
    coverage: Row | None = None
    fragments: tuple[tuple[str, ...], ...] = ()
    """The name patterns of each fragment's parameters, if the settings name its modules."""

    @property
    def period(self) -> int:
        """The number of steps after which a fragment is sent again."""
        return self.num_fragments * self.spacing

    def findings(self) -> list[Row]:
        """Return the claims about these settings, such as "once a period", each with its status and reason."""
        steps = f"each fragment is sent every {self.num_fragments} · {self.spacing} = {self.period} steps"
        if self.period == self.requested:
            period = "once a period", "proved", steps
        else:
            ratio = f"{self.requested} / {self.num_fragments} is rounded to {self.spacing}"
            first = self.period if self.program == "MaxText" else self.spacing
            witness = f"fragment 0 in steps {first} and {first + self.period}"
            period = ("once a period", "refuted", f"{ratio}, so {steps}, not {self.requested}: {witness}")
        order = ("one order", "proved", "which fragment is sent follows from the step, which all replicas share")
        sent_again = f"merged {self.delay} steps after it is sent, and sent again after {self.period}"
        merged = ("merged in time", "proved" if self.delay < self.period else "refuted", sent_again)
        return [period, order, merged, *([self.coverage] if self.coverage else [])]

    def rows(self) -> list[Row]:
        """Return the settings and their meaning, followed by the findings, as rows of a table."""
        dropped = "what a worker learns while a fragment is on its way is dropped"
        own = "of the local model" if self.alpha else dropped
        rows = [
            ("H", str(self.requested), "steps from one averaging of a fragment to the next, as asked for"),
            ("fragments", str(self.num_fragments), f"one of them is sent every {self.spacing} steps"),
            ("late by", str(self.delay), "steps from sending a fragment to merging it"),
            ("α", f"{float(self.alpha):g}", own if self.delay or self.alpha else "all continue from the global model"),
            ("outer step", self.outer.in_words or "none", "what becomes of the mean of all that moved"),
        ]
        return [*rows, *self.findings()]

    def schedule(self, source: str, cluster: Cluster | None) -> Schedule:
        """Return the settings as a schedule; raise RefutedError if one of the `findings` is refuted.

        Without a cluster every worker has its own node; raise DocumentError if the number of workers is not known then.
        `source` is the file's name.
        """
        for claim, status, why in self.findings():
            if status == "refuted":
                raise RefutedError(f"{source}: {claim} is refuted: {why}")
        if cluster is None and self.num_replicas < 2:
            raise DocumentError("document", "does not say how many replicas there are; give a cluster", source)
        cluster = Cluster.regular(self.num_replicas, 1) if cluster is None else cluster
        payload = Payload(outer=self.outer, fragments=self.fragments or self.num_fragments)
        sync = DelayedMerge(steps=self.delay, alpha=self.alpha) if self.delay or self.alpha else SYNCHRONOUS
        return Schedule(
            PurePath(source).stem, cluster, AllReduce(steps_per_round=self.requested, sync=sync, payload=payload)
        )


def read_maxtext(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """Read a schedule from MaxText's DiLoCo settings in YAML or JSON; absent settings have the defaults of base.yml."""
    return _import(_maxtext(_Members(_parse(data, source), MAXTEXT, source)), source, cluster)


def read_torchft(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """Read a schedule from torchft's `DiLoCo` arguments in JSON or YAML; `outer_optimizer` has those of outer SGD."""
    members = _Members(_parse(data, source), TORCHFT, source)
    members.check_unknown()
    return _import(_torchft(members), source, cluster)


def read_torchtitan(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """Read a schedule from `[fault_tolerance]` of torchtitan's TOML; its `semi_sync_method` is diloco or local_sgd."""
    try:
        table = tomllib.loads(data.decode()).get("fault_tolerance", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DocumentError("document", f"is no TOML: {error}", source) from None
    if not isinstance(table, dict):
        raise DocumentError("fault_tolerance", "is no table", source)
    return _import(_torchtitan(_Members(table, TORCHTITAN, source)), source, cluster)


def _import(settings: Settings, source: str, cluster: Cluster | None) -> Schedule:
    current_notes().rows.extend(settings.rows())
    return settings.schedule(source, cluster)


def _maxtext(members: _Members) -> Settings:
    """Return MaxText's settings: one of P fragments is sent every `spacing` = max(1, round(H / P)) steps.

    In a step this is the fragment (step mod P·spacing) div spacing; H is `diloco_sync_period`.
    """
    if not members.flag("enable_diloco"):
        raise members.member_error("enable_diloco", "it must be true, or there are no outer steps")
    requested = members.whole("diloco_sync_period", 1)
    momentum = members["diloco_outer_momentum"]
    streams = members.flag("enable_streaming_diloco")
    fragments = members.whole("num_diloco_fragments", 2) if streams else 1
    return Settings(
        program="MaxText",
        requested=requested,
        num_fragments=fragments,
        spacing=max(1, round(requested / fragments)),
        delay=members.whole("num_communication_overlapping_steps", 0) if streams else 0,
        alpha=members.share("communication_overlapping_alpha") if streams else Fraction(0),
        outer=members.outer(lr=members["diloco_outer_lr"], momentum=momentum, nesterov=momentum != 0),
        num_replicas=members.whole("dcn_diloco_parallelism", -1) * members.whole("ici_diloco_parallelism", -1),
    )


def _torchtitan(members: _Members) -> Settings:
    """Return the settings in torchtitan's file, which torchtitan passes on to torchft.

    If the file gives fragments by modules, a fragment has the parameters that begin with its modules' names.
    """
    method = members["semi_sync_method"]
    if not members.flag("enable") or method not in ("diloco", "local_sgd"):
        raise members.member_error("semi_sync_method", 'it must be "diloco" or "local_sgd", with enable = true')
    streams, named = method == "diloco", members["module_fqns_per_model_fragment"]
    if not isinstance(named, list) or not all(
        isinstance(each, list) and each and all(isinstance(name, str) and name for name in each) for each in named
    ):
        raise members.member_error("module_fqns_per_model_fragment", "it must list the modules of each fragment")
    count = (len(named) or members.whole("num_fragments", 1)) if streams else 1
    requested, spacing, delay = _turns_of_torchft(members, "sync_steps", count)
    return Settings(
        program="torchtitan",
        requested=requested,
        num_fragments=count,
        spacing=spacing,
        delay=delay if streams else 0,
        alpha=members.share("fragment_update_alpha") if streams else Fraction(0),
        outer=members.outer(**{"lr": 0.7, "momentum": 0.9, "nesterov": True} if streams else {}),
        num_replicas=members.whole("group_size", 0),
        fragments=tuple(tuple(f"{name}.*" for name in each) for each in named) if streams and len(named) > 1 else (),
    )


def _turns_of_torchft(members: _Members, every: str, fragments: int) -> tuple[int, int, int]:
    """Return (steps between averages of one fragment, steps between two fragments, steps from sending to merging).

    `every` is the name of the setting with the first number.
    """
    requested, delay = members.whole(every, 1), members.whole("fragment_sync_delay", 0)
    spacing, rest = divmod(requested, fragments)
    if rest:
        raise members.member_error(every, f"torchft asks for a multiple of the {fragments} fragments")
    if delay >= spacing:
        raise members.member_error("fragment_sync_delay", f"torchft asks for less than {requested} / {fragments} steps")
    return requested, spacing, delay


def _torchft(members: _Members) -> Settings:
    """Return torchft's settings: one of P fragments, the manager's step mod P, is sent every `sync_every` / P steps."""
    given = members["model_fragments"]
    sizes = members.sizes("model_fragments") if isinstance(given, list) else None
    fragments = members.whole("model_fragments", 1) if sizes is None else len(sizes)
    requested, spacing, delay = _turns_of_torchft(members, "sync_every", fragments)
    outer = members["outer_optimizer"]
    if not isinstance(outer, dict) or not set(outer) <= {"lr", "momentum", "nesterov"}:
        raise members.member_error(
            "outer_optimizer", 'it must be such as {"lr": 0.7, "momentum": 0.9, "nesterov": true}'
        )
    return Settings(
        program="torchft",
        requested=requested,
        num_fragments=fragments,
        spacing=spacing,
        delay=delay,
        alpha=members.share("fragment_update_alpha"),
        outer=members.outer(**outer),
        num_replicas=0 if members["num_replicas"] is None else members.whole("num_replicas", 2),
        coverage=_coverage(members, sizes),
    )


def _coverage(members: _Members, sizes: list[list[int]] | None) -> Row:
    """Return the claim that every tensor is averaged; `sizes` are those of each fragment's tensors (None: unknown)."""
    claim = "every tensor is sent"
    if not members.flag("use_bucketization"):
        return claim, "proved", "each tensor of a fragment has its own sum"
    if sizes is None:
        return claim, "not proved", "give model_fragments as lists of the sizes of their tensors"
    cap = members["bucket_cap_mb"]
    if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
        raise members.member_error("bucket_cap_mb", "it must be a number of megabytes above 0")
    capacity = int(cap * MEGABYTE) // members.whole("element_size", 1)
    if capacity < 1:
        raise members.member_error("bucket_cap_mb", "a bucket must hold at least 1 number")
    for number, fragment in enumerate(sizes):
        sent = sum(torchft_buckets(fragment, capacity))
        if sent < len(fragment):
            why = (
                f"tensor {sent} of fragment {number} has {fragment[sent]} numbers and does not fit into the rest of "
                f"its bucket of {capacity}, and no bucket is added: the tensors from it on ({len(fragment) - sent} of "
                f"{len(fragment)}) are never averaged"
            )
            return claim, "refuted", why
    return claim, "proved", f"each fits into a bucket of {capacity} numbers, filled in order"


def torchft_buckets(sizes: Sequence[int], capacity: int) -> list[int]:
    """Return how many whole tensors each of torchft's buckets takes, in order; the remaining tensors are never sent.

    `sizes` are the tensors' numbers of elements, `capacity` that of a bucket. There are as many buckets as all elements
    would fill; a tensor that does not fit into the rest of a bucket goes to the next, but no bucket is added for it.
    """
    left, total, taken = list(sizes), sum(sizes), []
    while total > 0:
        room = chunk = min(capacity, total)
        count = 0
        while left and left[0] <= room:
            room -= left.pop(0)
            count += 1
        taken.append(count)
        total -= chunk
    return taken


def _parse(data: bytes, source: str) -> Mapping[str, Any]:
    text = data.lstrip()
    value = parse_json(data, source=source) if text[:1] == b"{" else parse_yaml(data, source=source)
    if not isinstance(value, dict):
        raise DocumentError("document", "is no object of settings", source)
    return value


@dataclass(frozen=True, slots=True)
class _Members:
    """The settings of a file, with defaults for absent ones, and checks that name the faulty setting."""

    given: Mapping[str, Any]
    defaults: Mapping[str, Any]
    source: str

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever the file says
        return self.given.get(name, self.defaults[name])

    def member_error(self, name: str, rule: str) -> DocumentError:
        return DocumentError(name, f"is {format_value(self[name])}; {rule}", self.source)

    def check_unknown(self) -> None:
        for name in self.given:
            if name not in self.defaults:
                raise DocumentError("document", unknown(name, self.defaults), self.source)

    def flag(self, name: str) -> bool:
        if not isinstance(value := self[name], bool):
            raise self.member_error(name, "it must be true or false")
        return value

    def whole(self, name: str, least: int) -> int:
        if type(value := self[name]) is not int or value < least:
            raise self.member_error(name, f"it must be a whole number, at least {least}")
        return value

    def share(self, name: str) -> Fraction:
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self.member_error(name, "it must be a number from 0 to 1")
        return Fraction(str(value))

    def sizes(self, name: str) -> list[list[int]]:
        fragments: list[list[int]] = self[name]
        for number, sizes in enumerate(fragments):
            if not isinstance(sizes, list) or not sizes or any(type(size) is not int or size < 1 for size in sizes):
                problem = f"is {format_value(sizes)}; it must list the numbers of elements of the fragment's tensors"
                raise DocumentError(child(name, str(number)), problem, self.source)
        if not fragments:
            raise self.member_error(name, "there must be at least 1 fragment")
        return fragments

    def outer(self, **numbers: Any) -> OuterStep:  # noqa: ANN401 - whatever the file says
        try:
            outer = OuterStep(**numbers)
            outer.check()
        except ScheduleError as error:
            raise ScheduleError(f"{self.source}: {error}") from None
        return outer
