"""torchft's DiLoCo beside ours, in the same workers and on the same batches: do they end at the same model?

    PYTHONPATH=SITE python -m benchmarks.torchft_beside -o benchmarks/results/torchft.md      # SITE holds torchft

torchft's algorithm runs as it is; in the place of its manager, which handles faults, stands one that averages among the
workers of this run. AdamW inside, SGD with Nesterov's momentum outside. torchft is no dependency of this project.
"""

from __future__ import annotations

import copy
import sys
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks import kit
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedMerge, OuterStep, Payload, Synchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS, STEPS, BATCH = 4, 48, 16
LR, MOMENTUM = Fraction(7, 10), Fraction(9, 10)
NONE, HALF, QUARTER = Fraction(0), Fraction(1, 2), Fraction(1, 4)
SETTINGS = (
    (6, 1, 0, NONE),
    (12, 1, 4, NONE),
    (12, 2, 0, NONE),
    (12, 2, 3, NONE),
    (12, 2, 3, HALF),
    (24, 2, 8, QUARTER),
)
"""Steps of a round, fragments, steps by which a fragment is late, and the share of one's own that stays."""


class Averaging:
    """What torchft's DiLoCo asks of a manager, without faults: a mean of all workers, and the next fragment's turn."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self._turns = 0

    def allreduce(self, tensor: torch.Tensor, **_: Any) -> Averaging:  # noqa: ANN401 - quantization is off
        import partreduce

        partreduce.p_reduce(tensor, range(WORKERS), timeout=60)
        return self

    def wait(self, *_: object) -> bool:
        """It has been averaged."""
        return True

    def current_step(self) -> int:
        return self._turns

    def should_commit(self) -> bool:
        self._turns += 1
        return True

    def start_quorum(self, *_: object) -> None:
        """Nobody is missing."""

    disallow_state_dict_read = allow_state_dict_read = register_state_dict_fn = start_quorum


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def _batches(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every worker's own points and what a fixed network says of them."""
    draw = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(1)
    teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    for _ in range(STEPS):
        points = torch.randn(BATCH, 8, generator=draw)
        yield points, teacher(points).detach()


def _train(model: nn.Module, inner: torch.optim.Optimizer, step: Callable[[], None], rank: int) -> list[float]:
    """The losses on the way."""
    losses = []
    for points, said in _batches(rank):
        loss = nn.functional.mse_loss(model(points), said)
        inner.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        step()
        losses.append(float(loss))
    return losses


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _both(setting: tuple[int, int, int, Fraction]) -> list[float]:
    """The largest difference of parameters and of losses on the way, and the last loss of each."""
    from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]  # not among the dependencies

    import partreduce

    every, fragments, late, alpha = setting
    start = _model()
    ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
    names: Any = 1 if fragments == 1 else (("0.*",), ("2.*",))
    outer = OuterStep(lr=LR, momentum=MOMENTUM, nesterov=True)
    sync = DelayedMerge(steps=late, alpha=alpha) if late or alpha else Synchronous()
    strategy = AllReduce(steps_per_round=every, sync=sync, payload=Payload(outer=outer, fragments=names))
    inner = _adamw(ours)
    optimizer = partreduce.DistributedOptimizer(inner, ours, Schedule("diloco", Cluster.regular(1, WORKERS), strategy))
    our_losses = _train(ours, inner, optimizer.step, optimizer.rank)

    inner = _adamw(theirs)
    parts: list[nn.Module] = [theirs] if fragments == 1 else [theirs[0], theirs[2]]
    outers = [
        torch.optim.SGD(part.parameters(), lr=float(LR), momentum=float(MOMENTUM), nesterov=True) for part in parts
    ]
    options: dict[str, Any] = {"sync_every": every, "fragment_sync_delay": late, "fragment_update_alpha": float(alpha)}
    with DiLoCo(Averaging(), parts, inner, outers, pin_memory=False, **options):
        their_losses = _train(theirs, inner, inner.step, optimizer.rank)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    apart = max(float((one - other).detach().abs().max()) for one, other in pairs)
    off = max(abs(one - other) for one, other in zip(our_losses, their_losses, strict=True))
    return [apart, off, our_losses[-1], their_losses[-1]]


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    lines = []
    for setting in SETTINGS:
        found = kit.on_workers(partial(_both, setting), WORKERS)
        apart, off, ours, theirs = (max(said[place] for said in found) for place in range(4))
        lines.append([*setting, f"{apart:.1e}", f"{off:.1e}", f"{ours:.5f}", f"{theirs:.5f}"])
        print(lines[-1], flush=True)
    head = ("H", "fragments", "late", "alpha", "models apart", "losses apart", "last loss, ours", "torchft's")
    about = f"`{kit.command('torchft_beside')}`: {WORKERS} workers over gloo, {STEPS} steps, AdamW inside, torchft "
    about += f"{version('torchft')}; the largest of all workers."
    kit.write(chosen.output, "torchft's DiLoCo beside ours", about, kit.table(head, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
