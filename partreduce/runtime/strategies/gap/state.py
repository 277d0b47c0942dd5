"""Gap state: what a checkpoint holds of a worker that keeps a gap: its place in the protocol, and its queues' arrays.

The queues are complete when it is saved, since every worker has entered the round and nothing is on its way any more.
"""

from __future__ import annotations

import torch

from partreduce.runtime.transport.updates import PayloadRings
from partreduce.schedulers.protocols.hop import Hop, HopState
from partreduce.topo.errors import InputError

PLACE = "gap/place"
UPDATE = "gap/update"


def packed(machine: Hop, rank: int, state: HopState, rings: PayloadRings) -> dict[str, torch.Tensor]:
    """A worker's state as tensors by name: counts as integers, the arrays of updates as they are."""
    tensors = {PLACE: torch.tensor([state.step, state.stage])}
    for name in ("tokens", "acked", "fresh"):
        numbers = getattr(state, name)
        if numbers:
            tensors[f"gap/{name}"] = torch.tensor([int(number) for number in numbers])
    oldest = state.step - machine.setting.staleness
    for source, queue in zip(machine.graph.sources[rank], state.updates, strict=True):
        if queue:
            steps = [oldest + bit for bit in range(queue.bit_length()) if queue >> bit & 1]
            tensors[f"gap/queue/{source}"] = torch.tensor(steps)
        for step in rings.steps(source):
            for index, array in enumerate(rings.look(source, step)):
                tensors[f"{UPDATE}/{source}/{step}/{index}"] = array
    return tensors


def unpacked(machine: Hop, rank: int, round_: int, tensors: dict[str, torch.Tensor], rings: PayloadRings) -> HopState:
    """The state that `packed` wrote, with its arrays put into the empty rings.

    Raises:
        InputError: the tensors are of another round than the checkpoint.
    """
    step, stage = tensors[PLACE].tolist()
    if step != round_:
        raise InputError(f"load_checkpoint: the queues are those of step {step}, and the checkpoint is of {round_}")
    oldest = step - machine.setting.staleness
    rings.clear(oldest)
    queues = []
    arrays: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{UPDATE}/"):
            source, of, index = map(int, name.removeprefix(f"{UPDATE}/").split("/"))
            arrays.setdefault((source, of), {})[index] = tensor
    for (source, of), parts in sorted(arrays.items()):
        rings.restore(source, of, [parts[index] for index in range(len(parts))])
    for source in machine.graph.sources[rank]:
        held = tensors.get(f"gap/queue/{source}")
        queues.append(0 if held is None else sum(1 << of - oldest for of in held.tolist()))

    def numbers(name: str) -> list[int]:
        found = tensors.get(f"gap/{name}")
        return [] if found is None else found.tolist()

    return HopState(
        step=step,
        stage=stage,
        updates=tuple(queues),
        tokens=tuple(numbers("tokens")),
        acked=tuple(map(bool, numbers("acked"))),
        fresh=tuple(map(bool, numbers("fresh"))),
    )
