"""Save checkpoints of sharded models by torch.distributed.checkpoint, in one folder per replica.

A parameter's tensors are saved as DTensors, so a run may continue with another number of shards. State of a single rank
is saved under `shard-INDEX/`. A checkpoint is complete if every replica's folder has torch's metadata.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.dtensor_shards import like, local, replica_group
from partreduce.runtime.averaging.flat_model import FlatModel, strip_compiled
from partreduce.runtime.state.checkpoint_directory import NAME
from partreduce.runtime.state.saved_state import Tensors, json_of
from partreduce.topo.errors import FileError, InputError

Said = TypeVar("Said")
METADATA = ".metadata"  # the file that torch writes last
OWN = ("buffer/", "random/")  # prefixes of state that each rank saves separately


def newest(directory: Path, worker: int) -> Path | None:
    """Return the newest checkpoint that all replicas have; None if none exists. All ranks of the job call it.

    `worker` is the number of this rank's replica. Raises FileError if none of the checkpoints has all replicas' parts.
    """
    names = [path.name for path in directory.glob("round-*") if NAME.fullmatch(path.name)]
    seen = [name for name in names if (_place(directory / name, worker) / METADATA).exists()]
    gathered = all_gather_json((worker, seen))
    if common := set.intersection(*(set(names) for _, names in gathered)):
        return directory / max(common, key=_round_of)
    if found := {name for _, names in gathered for name in names}:
        last = max(found, key=_round_of)
        lost = _place(directory / last, next(one for one, names in gathered if last not in names))
        raise FileError(
            f"{directory}: of no checkpoint there all replicas can read their parts: {lost} is lost or incomplete"
        )
    return None


def _round_of(name: str) -> list[int]:
    return [int(number) for number in name.split("-")[1:]]


def all_gather_json(one: Said) -> list[Said]:
    """Return the JSON values of all ranks of the job, in order of ranks; all ranks call it."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, one)
    return gathered


def delete(folder: Path, worker: int, flat: FlatModel) -> None:
    """Delete the part of replica `worker` in a checkpoint, and the folder once it is empty."""
    if dist.get_rank(replica_group(flat.model)) == 0:
        (_place(folder, worker) / METADATA).unlink(missing_ok=True)
        shutil.rmtree(_place(folder, worker), ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _place(folder: Path, worker: int) -> Path:
    return folder / f"replica-{worker:05d}"


def save(folder: Path, worker: int, flat: FlatModel, tensors: Tensors, facts: dict[str, Any]) -> None:
    """Write the state of replica `worker` to its part of the checkpoint; all ranks of the replica call it.

    `facts` are values that are not tensors. Raises InputError if JSON lacks their types, FileError if writing fails.
    """
    group, place, dcp = replica_group(flat.model), _place(folder, worker), _torchs()
    own = f"shard-{dist.get_rank(group)}"
    text, problem = "", ""
    try:
        text = json_of(facts)
    except InputError as error:
        problem = str(error)
    if problem := next(filter(None, all_gather_json(problem)), ""):
        raise InputError(problem)
    named: Tensors = {f"{own}/facts": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
    for name, tensor in tensors.items():
        bucket = _bucket_of(name, tensor, flat)
        if bucket is not None:
            named |= {f"{name}/{slot.names[0]}": like(slot.parameter, slot.view(tensor)) for slot in bucket.slots}
        else:
            # Integers of the strategy are counters of the run, which are equal on all ranks of a replica.
            is_own = name.startswith(OWN) or (name.startswith("strategy/") and tensor.is_floating_point())
            named[f"{own}/{name}" if is_own else name] = tensor
    if dist.get_rank(group) == 0:
        (place / METADATA).unlink(missing_ok=True)
    try:
        dcp.save(named, checkpoint_id=place, process_group=group)
    except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - torch raises a rank's error on all ranks
        raise FileError(f"{place}: cannot be written: {_first_line(error)}") from None


def load(
    folder: Path, worker: int, flat: FlatModel, optimizer: torch.optim.Optimizer
) -> tuple[Tensors, dict[str, Any], bool]:
    """Load the state of replica `worker`; all ranks of the replica call it.

    Returns (tensors, other values, whether the same number of shards wrote it). Raises FileError, or InputError for
    state that only the same number of shards can load.
    """
    group, place, dcp = replica_group(flat.model), _place(folder, worker), _torchs()
    trained = [parameter for held in optimizer.param_groups for parameter in held["params"]]
    by_name = {strip_compiled(name): one for name, one in flat.model.named_parameters(remove_duplicate=False)}
    try:
        known: dict[str, Any] = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
        same = sum(re.fullmatch(r"shard-\d+/facts", name) is not None for name in known) == dist.get_world_size(group)
        own = f"shard-{dist.get_rank(group) if same else 0}/"
        named: Tensors = {}
        for name, facts in known.items():
            if name.startswith("shard-") and not name.startswith(own):
                continue
            kind, *parts = name.split("/")
            parameter = trained[int(parts[0])] if kind == "optimizer" else by_name.get(parts[-1])
            empty = torch.empty(facts.size, dtype=facts.properties.dtype)
            if parameter is not None and parameter.shape == empty.shape:
                empty = torch.empty_like(parameter, dtype=empty.dtype).detach()
            named[name] = empty
        dcp.load(named, checkpoint_id=place, process_group=group)
    except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - as above
        raise FileError(f"{place}: cannot be read: {_first_line(error)}") from None
    tensors = {name.removeprefix(own): tensor for name, tensor in named.items()}
    if not same and (left := [name for name in tensors if f"{own}{name}" in named and name.startswith("strategy/")]):
        raise InputError(
            f"load_checkpoint: {folder} holds {', '.join(left)} of another number of shards, which continues with as "
            "many shards only; start as many ranks a replica"
        )
    found = json.loads(bytes(tensors.pop("facts").tolist()))
    return _join_shards(tensors, flat), found, same


def _bucket_of(name: str, tensor: torch.Tensor, flat: FlatModel) -> Bucket | None:
    """Return the bucket that the strategy's array `name` belongs to, judged by its shape; None for any other tensor."""
    kind, _, rest = name.partition("/")
    index = rest.rpartition("/")[2]
    if kind != "strategy" or not index.isdecimal() or int(index) >= len(flat.buckets):
        return None
    bucket = flat.buckets[int(index)]
    return bucket if tensor.shape == bucket.flat.shape else None


def _join_shards(tensors: Tensors, flat: FlatModel) -> Tensors:
    slots = {slot.names[0]: (bucket, slot) for bucket in flat.buckets for slot in bucket.slots}
    whole: Tensors = {}
    for name, tensor in tensors.items():
        array, _, parameter = name.rpartition("/")
        if name.startswith("strategy/") and parameter in slots:
            bucket, slot = slots[parameter]
            slot.view(whole.setdefault(array, torch.zeros_like(bucket.flat))).copy_(local(tensor))
        else:
            whole[name] = tensor
    return whole


def _torchs() -> Any:  # noqa: ANN401 - torch.distributed.checkpoint, which is slow to import
    from torch.distributed import checkpoint

    return checkpoint


def _first_line(error: BaseException) -> str:
    """Describe the first failed rank's error in one line; torch lists a traceback for each rank."""
    causes: Any = getattr(error, "failures", {})
    cause = next((one[0] if isinstance(one, tuple) else one for one in causes.values()), error)
    return f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0]}"[:200]
