"""How a schedule runs, in a few words, for tables and titles."""

from __future__ import annotations

from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Sync, Transport
from partreduce.topo.strategies.base import StepsPerRound
from partreduce.topo.strategies.payload import PLAIN_PAYLOAD, Payload


def runs(
    steps_per_round: StepsPerRound,
    sync: Sync,
    transport: Transport,
    algorithm: AllReduceAlgorithm | None = None,
    *,
    payload: Payload = PLAIN_PAYLOAD,
) -> str:
    """What differs from float32 sums around rings, in one piece, synchronously, after every step; may be empty."""
    words = (
        [] if steps_per_round == 1 else [f"every {steps_per_round}" if isinstance(steps_per_round, int) else "paced"]
    )
    words += [sync.in_words] if sync.in_words else []
    if (algorithm or transport.algorithm) is not AllReduceAlgorithm.RING:
        words.append(str(algorithm or transport.algorithm))
    if transport.codec is not Codec.NONE:
        words.append(str(transport.codec) + (" across" if transport.where is CodecScope.ACROSS_NODES else ""))
    if transport.gradient_buckets is GradientBuckets.PER_LAYER:
        words.append("layers")
    words += [part for part in (payload.in_words, payload.outer.in_words, payload.turns_in_words) if part]
    return " ".join(words)
