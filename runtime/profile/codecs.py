"""Times the codecs' own computing: every worker encodes and decodes at once, as in training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from partreduce.runtime.codecs.blocks import BlockCodec
from partreduce.runtime.codecs.coding import DTYPES
from partreduce.runtime.profile.measure import WARM_UP, settle
from partreduce.runtime.transport.worlds import World
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.hardware import CodecSeconds
from partreduce.topo.strategies.axes import RING, Codec

MAX_NUMBERS = 2**24
"""Of a larger model a part is coded, which takes as long for each byte."""


def measure_codecs(
    world: World, *, model_bytes: int, repetitions: int, device: torch.device
) -> tuple[tuple[str, CodecSeconds], ...]:
    """Seconds per byte of float32 of every codec, by name; the slowest worker's median. All workers call this.

    Raises:
        UnavailableError: a worker is gone.
    """
    count = min(max(1, model_bytes // 4), MAX_NUMBERS)
    values = torch.randn(count, generator=torch.Generator().manual_seed(world.rank)).to(device)
    passes = _passes(values)
    times = torch.zeros(len(passes), repetitions, dtype=torch.float32, device=device)
    gate = torch.zeros(1, dtype=torch.float32, device=device)
    for repetition in range(-WARM_UP, repetitions):
        for index, run in enumerate(passes.values()):
            world.everyone().all_reduce(gate).wait()
            settle(device)
            started = perf_counter()
            run()
            settle(device)
            if repetition >= 0:
                times[index, repetition] = perf_counter() - started
    medians = torch.zeros(world.size, len(passes), dtype=torch.float32, device=device)
    medians[world.rank] = times.median(dim=1).values
    world.everyone().all_reduce(medians).wait()
    slowest = dict(zip(passes, (medians.max(dim=0).values.double() / (4 * count)).tolist(), strict=True))
    names = sorted({codec for codec, _ in passes})
    return tuple(
        (codec, CodecSeconds(*(float(f"{slowest[codec, way]:.3g}") for way in ("encode", "decode")))) for codec in names
    )


def _passes(values: torch.Tensor) -> dict[tuple[str, str], Callable[[], object]]:
    """(codec, encode or decode) → what does it, in the order in which they can run."""
    passes: dict[tuple[str, str], Callable[[], object]] = {}
    for codec, dtype in DTYPES.items():
        short, back = values.to(dtype), torch.empty_like(values)
        passes[codec.value, "encode"] = partial(values.to, dtype)
        passes[codec.value, "decode"] = partial(back.copy_, short)
    if values.device.type == "cuda":
        return passes  # the run-time has no codecs of blocks there
    decoded = torch.empty_like(values)
    for codec in (one for one in Codec if one.has_blocks):
        ours = BlockCodec(codec, RING.block)
        code = torch.zeros(block_bytes(codec, len(values), RING.block), dtype=torch.uint8)
        passes[codec.value, "encode"] = partial(ours.encode, values, code)
        passes[codec.value, "decode"] = partial(ours.decode, code, decoded)
    return passes
