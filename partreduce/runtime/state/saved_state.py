"""Save one worker's state in the safetensors format (no pickle), or copy it to a joining worker.

Tensors: `model/NAME`, `buffer/NAME`, `optimizer/INDEX/KEY`, `group/INDEX/KEY`, `random/…`, `strategy/NAME`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import random
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from partreduce.runtime.averaging.buffer_rules import AVERAGED, BufferRule
from partreduce.runtime.averaging.flat_model import strip_compiled
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.sharding.table_state import gathered_of, layouts_of, shards_of
from partreduce.runtime.state.checkpoint_directory import read_bytes
from partreduce.runtime.worker.engine import Engine
from partreduce.runtime.worker.shutdown import Meeting
from partreduce.topo.errors import DocumentError, InputError, MissingDependencyError
from partreduce.topo.extras import load

Tensors = dict[str, torch.Tensor]
PAIRS = "partreduce.pairs"  # the key under which a dict is stored as a list of pairs


class StateFile:
    """One worker's state, for a checkpoint, as named tensors and JSON for the rest: collects and restores it."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.optimizer = engine, engine.optimizer
        self.flat, self.tables = engine.run.flat, engine.run.tables

    def collect(self) -> tuple[Tensors, dict[str, Any]]:
        live = self._model() | shards_of(self.tables)
        tensors = {name: tensor.detach().clone() for name, tensor in live.items()}
        saved = self.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, state in saved["state"].items():
            _split(state, f"optimizer/{index}", tensors, numbers)
        for index, group in enumerate(saved["param_groups"]):
            _split(group, f"group/{index}", tensors, numbers)
        device = self.flat.buckets[0].device
        facts = {"steps": self.engine.steps, "optimizer": numbers, "random": _random_states(tensors, device)}
        if self.tables:
            facts["tables"] = layouts_of(self.tables, self.optimizer)
        for name, tensor in self.engine.runner.state().items():
            tensors[f"strategy/{name}"] = tensor.detach().clone()
        return tensors, facts

    def restore(self, tensors: Tensors, facts: Mapping[str, Any], *, own_random_states: bool = True) -> Tensors:
        """Restore model, optimizer and random states in place; return the runner's tensors, for the caller to load.

        `facts` has the values that are not tensors. With `own_random_states=False` the random states stay as they are.
        Raises InputError, before it changes anything, if tensors or parameter groups do not fit.
        """
        numbers = facts["optimizer"]
        groups = self._saved_groups(tensors, numbers)
        self._restore(self._model() | shards_of(self.tables), tensors)
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/", 2)
                state.setdefault(int(index), {})[key] = tensor
        for name, values in numbers.items():
            kind, index = name.split("/")
            if kind == "optimizer":
                state.setdefault(int(index), {}).update(values)
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if own_random_states:
            _restore_random_states(tensors, facts["random"], self.flat.buckets[0].device)
        return {n.removeprefix("strategy/"): t for n, t in tensors.items() if n.startswith("strategy/")}

    def _saved_groups(self, tensors: Tensors, numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the saved parameter groups. Raises InputError unless their number and sizes are the optimizer's."""
        current = self.optimizer.state_dict()["param_groups"]
        count = sum(name.startswith("group/") for name in numbers)
        if count != len(current):
            raise InputError(
                f"the optimizer has {len(current)} parameter group{'s' * (len(current) > 1)}, and the file has "
                f"{count}; call add_param_group before loading, as the saved run did before saving"
            )
        groups = []
        for place, group in enumerate(current):
            saved, prefix = dict(numbers[f"group/{place}"]), f"group/{place}/"
            saved |= {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            found = saved.setdefault("params", group["params"])  # which earlier versions did not save
            if len(found) != len(group["params"]):
                raise InputError(
                    f"parameter group {place} of the optimizer has {len(group['params'])} parameters, and the file has "
                    f"{len(found)}; give the optimizer the groups of the saved run"
                )
            groups.append(group | {k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in saved.items()})
        return groups

    def restore_mean(self, paths: Iterable[Path]) -> dict[str, Any]:
        """Load the mean of several workers' models, saved in the files `paths`, in place.

        Sharded tables are not loaded; returns the saved description of their layouts, empty without tables.
        """
        layouts: dict[str, Any] = {}
        sums: Tensors = {}
        first: Tensors = {}
        count = 0
        for path in paths:
            tensors, facts = unpack(read_bytes(path), path)
            count += 1
            layouts = facts.get("tables", {})
            for name in self._model():
                if name not in tensors:
                    raise DocumentError(name, "is missing", str(path))
                kind, _, rest = name.partition("/")
                is_mean = kind != "buffer" or self.flat.rules.get(rest) is BufferRule.MEAN
                if is_mean and tensors[name].dtype in AVERAGED:
                    value = tensors[name].double()
                    sums[name] = sums[name] + value if name in sums else value
                first.setdefault(name, tensors[name])
        means = {name: (total / count).to(first[name].dtype) for name, total in sums.items()}
        self._restore(self._model(), first | means)
        return layouts

    def _model(self) -> Tensors:
        """Return the model's live tensors by name, each once, without table rows that only this worker has."""
        live: Tensors = {f"model/{slot.names[0]}": slot.parameter for slot in self.flat.slots()}
        for name, parameter in self.flat.model.named_parameters():
            if not parameter.requires_grad:
                live[f"model/{strip_compiled(name)}"] = parameter
        live = {name: one for name, one in live.items() if name not in shards_of(self.tables)}
        live |= gathered_of(self.tables)
        live |= {f"buffer/{name}": buffer for name, buffer in self.flat.named_buffers()}
        return live

    @staticmethod
    def _restore(model: Tensors, tensors: Tensors) -> None:
        for name, live in model.items():
            if name not in tensors or tensors[name].shape != live.shape:
                raise InputError(f"{name} is missing in the file or has another shape")
        with torch.no_grad():
            for name, live in model.items():
                live.copy_(tensors[name])


def pack(state: StateFile, extra: object, lineage: str) -> bytes:
    """Return a worker's state, with `extra`, a JSON value, as a safetensors file with the lineage in its header."""
    tensors, facts = state.collect()
    header = {"partreduce": json_of(facts | {"extra": extra}), "lineage": lineage}
    data: bytes = load("safetensors.torch", "a checkpoint").save(
        {name: t.contiguous().cpu() for name, t in tensors.items()}, header
    )
    return data


def encode_keys(value: object) -> object:
    """Return `value` with dicts that JSON would change as lists of pairs: keys other than strings, and Counters.

    The milestones of a MultiStepLR are a Counter of integers. Other keys that JSON lacks stay; `json_of` refuses them.
    """
    if isinstance(value, (list, tuple)):
        return [encode_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    items = {key: encode_keys(one) for key, one in value.items()}
    is_plain = not isinstance(value, Counter) and all(isinstance(key, str) and key != PAIRS for key in items)
    if is_plain or not all(key is None or isinstance(key, (str, int, float)) for key in items):
        return items
    return {PAIRS: list(items.items()), "counter": isinstance(value, Counter)}


def decode_keys(value: object) -> object:
    """Return what `encode_keys` was given, but with lists for tuples."""
    if isinstance(value, list):
        return [decode_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    if PAIRS not in value:
        return {key: decode_keys(one) for key, one in value.items()}
    items = {key: decode_keys(one) for key, one in value[PAIRS]}
    return Counter(items) if value["counter"] else items


def json_of(facts: Mapping[str, Any]) -> str:
    """Encode values that are not tensors as JSON. Raises InputError for types that JSON lacks."""
    try:
        return json.dumps(facts)
    except (TypeError, ValueError) as error:
        where = _place_of_fault(facts, "")
        raise InputError(f"save_checkpoint: extra and optimizer settings must be JSON ({where}: {error})") from None


def _place_of_fault(value: object, place: str) -> str:
    """Return the keys that lead to the first part of `value` that is no JSON, such as `extra.scheduler.base`."""
    items: Iterable[tuple[object, object]] = enumerate(value) if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Mapping):
        items = value.get(PAIRS) or value.items()  # as `encode_keys` writes it
    for key, one in items:
        try:
            json.dumps({key: one})
        except (TypeError, ValueError):
            return _place_of_fault(one, f"{place}.{key}")
    return place.removeprefix(".")


def unpack(data: bytes, place: Path) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors and other values in a safetensors file. Raises DocumentError, which names `place`."""
    try:
        tensors: Tensors = load("safetensors.torch", "a checkpoint").load(data)
        length = int.from_bytes(data[:8], "little")
        facts = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["partreduce"])
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - safetensors has its own error types; all mean a foreign file
        raise DocumentError("", f"is no checkpoint file ({error})", str(place)) from None
    return tensors, facts


def _split(values: Mapping[str, Any], prefix: str, tensors: Tensors, numbers: dict[str, dict[str, Any]]) -> None:
    numbers[prefix] = {key: value for key, value in values.items() if not isinstance(value, torch.Tensor)}
    # The momentum of sparse gradients is sparse, which the format lacks; the optimizer gets a dense tensor on loading.
    own = {f"{prefix}/{key}": value.detach() for key, value in values.items() if isinstance(value, torch.Tensor)}
    tensors.update({name: one.to_dense() if one.is_sparse else one.clone() for name, one in own.items()})


def _random_states(tensors: Tensors, device: torch.device) -> dict[str, Any]:
    tensors["random/torch"] = torch.get_rng_state()
    if device.type == "cuda":  # only this worker's device, since a query would open a context on any other
        tensors["random/cuda"] = torch.cuda.get_rng_state(device)
    version, numbers, gauss = random.getstate()
    facts: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if "numpy" in sys.modules:
        import numpy as np

        kind, keys, place, has_gauss, cached = np.random.get_state()  # the legacy generator, which user code may use
        tensors["random/numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
        facts["numpy"] = [str(kind), int(place), int(has_gauss), float(cached)]
    return facts


def _restore_random_states(tensors: Tensors, facts: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(tensors["random/torch"])
    if device.type == "cuda" and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
    version, numbers, gauss = facts["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "numpy" in facts:
        import numpy as np

        kind, place, has_gauss, cached = facts["numpy"]
        keys = tensors["random/numpy"].numpy().astype(np.uint32)
        np.random.set_state((kind, keys, place, has_gauss, cached))


BEHIND = (
    "workers may be started again here (--max-restarts), and one that joins does not know how far this script's "
    "learning-rate scheduler has come; call optimizer.register_stateful(scheduler), on all workers, when both are made"
)


JOINING = "joining worker"  # the place in errors about the state that it gets from another worker


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
    """Context in which an InputError about saved state begins with `place`, the function that the user called."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`, such as a scheduler or a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class Handover:
    """One worker's state for a joining worker to copy (see `elastic.regroup`); without random states."""

    def __init__(self, wrapper: torch.optim.Optimizer, engine: Engine, meeting: Meeting) -> None:
        self._wrapper = weakref.ref(wrapper)  # weak, since the wrapper owns this object
        self.run, self.engine, self.meeting = engine.run, engine, meeting
        self.optimizer = engine.optimizer
        self.objects: list[Stateful] = []
        self._taken: list[dict[str, Any]] | None = None
        self._groups: list[dict[str, Any]] = []

    def add(self, objects: tuple[Stateful, ...]) -> None:
        """Add objects whose state a joining worker copies; on one that has joined, load the copied states into them."""
        for one in objects:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise InputError(f"register_stateful: a {type(one).__name__} has no state_dict() and load_state_dict()")
            if self._taken is not None and len(self.objects) == len(self._taken):
                raise InputError(
                    f"register_stateful: the worker whose state this one has gave {len(self._taken)} objects; all "
                    "workers register the same ones, in one order"
                )
            if self.run.membership.may_change:
                with naming(f"register_stateful: {type(one).__name__}"):
                    _unpack_states(_pack_states(one))
            self.objects.append(one)
            if self._taken is not None:
                one.load_state_dict(self._taken[len(self.objects) - 1])
        for group, taken in zip(self.optimizer.param_groups, self._groups, strict=False):
            group.update(taken)  # since creating a scheduler resets the learning rate

    def check_unfit(self) -> None:
        steps = (getattr(one, "step", None) for one in (self.optimizer, self._wrapper()))
        if any(hasattr(step, "_wrapped_by_lr_sched") for step in steps) and not self.objects:
            raise InputError(f"scheduler: {BEHIND}")

    def give(self) -> bytes:
        member = self.member
        extra = {
            "counts": self.run.reducer.heartbeat.counts,
            "data": [self.engine.data_epoch, member.views],
            "since": list(member.since.items()),
            "changes_means": self.run.applier.changes_means,
            "rules": self.run.flat.rules,
            "generation": self.engine.uneven_inputs.generation,
            "lineage": [self.meeting.lineage, self.meeting.earlier],
            "objects": base64.b64encode(_pack_states(*self.objects)).decode(),
        }
        return pack(StateFile(self.engine), extra, self.meeting.lineage)

    def take(self, data: bytes, turn: int) -> None:
        tensors, facts = unpack(data, Path("the state of another worker"))
        with naming(JOINING):
            kept = StateFile(self.engine).restore(tensors, facts, own_random_states=False)
        self._groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        extra = facts["extra"]
        self.run.reducer.heartbeat.counts = tuple(extra["counts"])
        self.engine.uneven_inputs.generation = int(extra["generation"])
        self.meeting.lineage, self.meeting.earlier = extra["lineage"]
        generation, views = extra["data"]
        self.engine.data_epoch = generation[0], generation[1]
        self.member.views = [(after, tuple(members)) for after, members in views]
        self.member.since = dict(extra["since"])
        self._taken = _unpack_states(base64.b64decode(extra["objects"]))
        steps = self.member.step_of(turn, self.run.steps_per_round)
        self.engine.continue_from(steps)
        self.engine.catch_up()
        self.run.applier.changes_means = extra["changes_means"]
        self.run.flat.copy_masks([name for name, rule in extra["rules"].items() if rule == BufferRule.FIRST])
        with naming(JOINING):
            self.engine.runner.load(kept, steps)

    @property
    def member(self) -> Member:
        assert isinstance(self.run.membership, Member), "only elastic runs are joined"
        return self.run.membership


def _pack_states(*objects: Stateful) -> bytes:
    states = io.BytesIO()
    torch.save([one.state_dict() for one in objects], states)
    return states.getvalue()


def _unpack_states(states: bytes) -> list[dict[str, Any]]:
    """Return what `_pack_states` got. Raises InputError for a type whose unpickling may run code."""
    try:
        loaded: list[dict[str, Any]] = torch.load(io.BytesIO(states), weights_only=True)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL (\S+)", str(error))
        raise InputError(
            f"state_dict() holds {kind[1] if kind else 'a type'}, which a joining worker cannot load; "
            "return tensors, numbers, strings, lists and dicts"
        ) from None
    return loaded
