"""Measure from sample batches what fraction of a table's rows a step looks up: on a worker, on a node, and on all.

Also detect other uses of a table's weight in a forward pass, which need all rows in one place.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.overrides import TorchFunctionMode

from partreduce.runtime.liveness.store_collectives import gather_from_store
from partreduce.runtime.sharding.placement import embeddings_of
from partreduce.runtime.sharding.table import Embeddings
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.timing.tables import RowAccess

INDICES = (torch.int32, torch.int64)
LOOKUPS = (F.embedding, F.embedding_bag, torch.embedding, torch.embedding_bag)
SHAPES_ONLY = ("new_", "_like")  # in the names of functions that use a tensor's dtype and shape, not its values

Rows = dict[str, npt.NDArray[np.int64]]  # rows that a batch looks up, ascending, by parameter name


class SampledRows(NamedTuple):
    """Numbers of the rows that each sample batch looks up, by embedding, and how many rows each embedding has."""

    sizes: dict[str, int]
    batches: list[Rows]


def sample_row_access(
    model: torch.nn.Module,
    batches: Iterable[Any],
    forward: Callable[[torch.nn.Module, Any], object] | None,
    num_batches: int,
) -> SampledRows:
    """Run the model on this worker's first `num_batches` batches and return the rows that they look up.

    `forward` calls the model with a batch, by default `call`. Raises InputError if there is no batch.
    """
    with record_lookups(model, forward or call) as look:
        seen = [look(batch) for batch in itertools.islice(batches, num_batches)]
    if not seen:
        raise InputError("parallelize: batches has no batch; give some of this worker's, at least one")
    return SampledRows(sizes_of(model), seen)


def sizes_of(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of rows of each embedding parameter, by name."""
    return {name: int(parameter.shape[0]) for name, (parameter, _) in embeddings_of(model).items()}


@contextmanager
def record_lookups(
    model: torch.nn.Module, forward: Callable[[torch.nn.Module, Any], object]
) -> Iterator[Callable[[Any], Rows]]:
    """Yield a function that calls the model with a batch, by `forward`, and returns the rows that the call looks up."""
    known = embeddings_of(model)
    names: dict[torch.Tensor, str] = {parameter: name for name, (parameter, _) in known.items()}
    lookups = [module for _, modules in known.values() for module in modules]
    found: dict[str, list[npt.NDArray[np.int64]]] = {}

    def note(module: Embeddings, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        indices = given[0] if given else keywords["input"]
        if getattr(indices, "dtype", None) not in INDICES:
            return  # torch's own lookup will raise an error
        name, rows = names[module.weight], module.weight.shape[0]
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
            raise InputError(
                f"parameter {name!r}: an index of a sample batch is out of range; its rows are 0..{rows - 1}"
            )
        found[name].append(indices.detach().unique().cpu().numpy().astype(np.int64))

    def look(batch: object) -> Rows:
        found.update({name: [] for name in known})
        forward(model, batch)
        return {name: union(rows) for name, rows in found.items()}

    norms = {module: module.max_norm for module in lookups}
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in lookups]
    try:
        for module in lookups:
            module.max_norm = None
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield look
    finally:
        for hook in hooks:
            hook.remove()
        for module, norm in norms.items():
            module.max_norm = norm


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode inside the context."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def union(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the row numbers that occur in any part, ascending."""
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def call(model: torch.nn.Module, batch: object) -> object:
    """Call the model with a batch, whose inputs `inputs_of` finds. Raises InputError if they do not fit `forward()`."""
    parts, keywords = inputs_of(model, batch)
    try:
        inspect.signature(model.forward).bind(*parts, **keywords)
    except TypeError as error:
        raise InputError(
            f"parallelize: forward() of {type(model).__name__} does not take a sample batch ({error}); say how it is "
            "called: forward=lambda model, batch: ..."
        ) from None
    return model(*parts, **keywords)


def inputs_of(model: torch.nn.Module, batch: object) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return positional and keyword arguments for the model's `forward()` from a batch.

    A dict gives keyword arguments. A tuple or list gives its first entries, as many as `forward()` has parameters, or
    all if it takes `*args`. Any other batch, such as a tensor, is the only argument.
    """
    if isinstance(batch, dict):
        return (), batch
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    takes = inspect.signature(model.forward).parameters.values()
    if not any(one.kind is one.VAR_POSITIONAL for one in takes):
        parts = parts[: sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in takes)]
    return parts, {}


def message_of(rank: int, seen: SampledRows | str) -> str:
    """Return worker `rank`'s sampled rows, or a text that says why it has none, as JSON for worker 0."""
    if isinstance(seen, str):
        return json.dumps({"problem": f"worker {rank}: {seen}"})
    packed = [{name: _pack_rows(rows, seen.sizes[name]) for name, rows in batch.items()} for batch in seen.batches]
    return json.dumps({"rows": seen.sizes, "batches": packed})


def shares(gathered: list[str], cluster: Cluster) -> dict[str, RowAccess]:
    """Return, by table, the mean fraction of its rows that a step looks up; `gathered` has each worker's `message_of`.

    Raises InputError for a worker's error, or if the workers' tables differ.
    """
    texts = [json.loads(text) for text in gathered]
    for text in texts:
        if "problem" in text:
            raise InputError(text["problem"])
    sizes = texts[0]["rows"]
    for rank, text in enumerate(texts):
        for name in [*sizes, *text["rows"]]:
            own, first = (
                f"a table of {one[name]} rows" if name in one else "no embedding that is trained"
                for one in (text["rows"], sizes)
            )
            if own != first:
                raise InputError(
                    f"parallelize: parameter {name!r} is {own} on worker {rank} and {first} on worker 0; give all "
                    "workers the same model"
                )
    steps = zip(*(text["batches"] for text in texts), strict=False)  # limited by the worker with the fewest batches
    unpacked = [
        [{name: _unpack_rows(bits, sizes[name]) for name, bits in one.items()} for one in step] for step in steps
    ]
    return shares_of(unpacked, sizes, cluster)


def shares_of(steps: Sequence[Sequence[Rows]], sizes: Mapping[str, int], cluster: Cluster) -> dict[str, RowAccess]:
    """Return, by table, the mean fraction of its rows that a step looks up: on a worker, on a node, on all workers.

    `steps` has, for each step, the rows of every worker by rank; `sizes` the number of rows of each table.
    """
    all_ranks = range(cluster.num_workers)
    nodes = [cluster.workers_of(node) for node in range(cluster.num_nodes)]

    def share(name: str, parts: Sequence[Sequence[int]]) -> float:
        counts = [[len(union([step[rank][name] for rank in part])) for part in parts] for step in steps]
        return float(np.mean(counts)) / sizes[name]

    found = {}
    for name in sizes:
        worker, node = share(name, [(rank,) for rank in all_ranks]), share(name, nodes)
        node = max(worker, node)  # with unequal nodes the mean may be less
        found[name] = RowAccess(worker, node, max(node, share(name, [all_ranks])))
    return found


def gather_texts(world: World, key: str, text: str, timeout: float) -> list[str]:
    """On worker 0 return all workers' texts by rank, within `timeout` seconds, else `[text]`; `key` must be new."""
    place = f"parallelize/{key}"
    Notes(world.store, place).write(f"says/{world.rank}", text)
    if world.rank:
        return [text]
    writers = {f"says/{rank}": rank for rank in range(1, world.size)}
    others = gather_from_store(world, place, writers, timeout, who="parallelize")
    return [text, *others]


def _pack_rows(rows: npt.NDArray[np.int64], size: int) -> str:
    bits = np.zeros(size, dtype=np.bool_)
    bits[rows] = True
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 1)).decode()


def _unpack_rows(text: str, size: int) -> npt.NDArray[np.int64]:
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(packed, count=size))


class OtherUses(TorchFunctionMode):
    """Torch function mode that finds uses of a table's weight by functions other than a lookup.

    `found` has the name of the first of these functions by the table's name.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, (parameter, _) in embeddings_of(model).items()}
        self.found: dict[str, str] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        result = func(*args, **(kwargs or {}))
        if func not in LOOKUPS and _has_tensor([result]):
            word = getattr(func, "__name__", "a function")
            if not any(part in word for part in SHAPES_ONLY):
                for name in self._tables_in([*args, *(kwargs or {}).values()]):
                    self.found.setdefault(name, "an attribute of it" if word == "__get__" else word)
        return result

    def _tables_in(self, values: Iterable[Any]) -> list[str]:
        flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
        return [self._names[id(one)] for one in flat if id(one) in self._names]


def _has_tensor(values: Iterable[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) or (isinstance(one, (list, tuple)) and _has_tensor(one)) for one in values)
