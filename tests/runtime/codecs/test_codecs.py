"""The codecs alone: bitwise equality with a NumPy model, error bounds, and non-finite values."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.coded_sums import UNDERFLOW, UNIT_ROUNDOFF, rounding_error
from partreduce.runtime.codecs import BlockCodec, Coding, Codings, Leftovers, decode_values, encode_values
from partreduce.strategies import Codec, Transport
from partreduce.topo.codec_numbers import LARGEST, LEVELS, block_bytes

DRAWS = int(os.environ.get("PARTREDUCE_CODED_SUMS", "150"))


def adversarial(rng, length):
    """Adversarial blocks: wide ranges, subnormal numbers, zeros, outliers, ties, largest and smallest values."""
    values = rng.standard_normal(length) * 2.0 ** rng.integers(-149, 126, length).astype(float)
    kind = rng.integers(7)
    if kind == 0:
        values = rng.standard_normal(length) * 2.0 ** float(rng.integers(-149, 120))
    elif kind == 1:
        values = np.zeros(length)
        values[rng.integers(length)] = 2.0 ** float(rng.integers(-149, 127))
    elif kind == 2:
        values = rng.integers(-254, 255, length) * 2.0 ** float(rng.integers(-140, 100)) / 2  # halves are ties
    elif kind == 3:
        values = rng.integers(-300, 301, length) * 2.0**-149
    elif kind == 4:
        values = rng.choice([-1.0, 0.0, 1.0], length) * 2.0**127
    elif kind == 5:
        values = rng.standard_normal(length) * 2.0 ** rng.uniform(-121, -117, length)
    return values.astype(np.float32)


def roundtrip(values, block, name="int8"):
    codec = BlockCodec(name, block)
    code = torch.full((block_bytes(name, len(values), block),), 77, dtype=torch.uint8)
    codec.encode(torch.from_numpy(values), code)
    result = torch.empty(len(values))
    codec.decode(code, result)
    return code.numpy(), result.numpy()


@pytest.mark.parametrize("codec", LEVELS)
@pytest.mark.parametrize("first", range(0, DRAWS, 150))
def test_block_codecs_match_the_numpy_model_and_the_error_bound(first, codec):
    for seed in range(first, min(first + 150, DRAWS)):
        rng = np.random.default_rng(seed)
        length, block = int(rng.integers(1, 700)), int(rng.choice([1, 2, 7, 64, 256, 1000]))
        values = adversarial(rng, length)
        code, result = roundtrip(values, block, codec)
        levels, scales = coded_sums.quantize(values, block, LEVELS[codec])
        if codec == "int8":
            assert code[:length].view(np.int8).tolist() == levels.tolist()
        else:
            halves = [half - 16 * (half > 7) for byte in code.tolist() for half in (byte % 16, byte // 16)]
            assert halves[:length] == levels.tolist()
        filled = -(-length // (4 if codec == "int8" else 8)) * 4
        assert code[filled:].view(np.float32).tolist() == scales[::block].tolist()
        np.testing.assert_array_equal(result, coded_sums.in_blocks(values, block, LEVELS[codec]))
        error = rounding_error(codec)
        peaks = coded_sums.peaks_of(values, block)
        worst = rng.choice(length, min(length, 12), replace=False).tolist()
        worst.append(int(np.argmax(np.abs(result.astype(float) - values) - float(error) * peaks)))
        for place in worst:
            off = abs(Fraction(float(result[place])) - Fraction(float(values[place])))
            assert off <= error * Fraction(float(peaks[place])) + UNDERFLOW[codec]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_non_finite_value_makes_only_its_block_nan(bad):
    values = np.linspace(-3, 3, 100).astype(np.float32)
    values[37] = bad
    _, result = roundtrip(values, 16)
    assert np.isnan(result[32:48]).all()
    assert np.isfinite(np.delete(result, slice(32, 48))).all()


def test_zeros_and_tiny_blocks_decode_to_zero():
    values = np.zeros(64, np.float32)
    values[32:] = np.float32(2.0**-120)
    code, result = roundtrip(values, 32)
    assert not code.any()
    assert not result.any()
    values[32:] = np.float32(2.0**-119)
    assert roundtrip(values, 32)[1][32:] == pytest.approx(2.0**-119, rel=1e-6)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec.rounds])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_frames_accept_any_float_dtype_and_have_the_stated_size(codec, dtype):
    values = torch.randn(1001, generator=torch.Generator().manual_seed(5)).to(dtype)
    coding = Coding(Transport(codec=codec))
    code = encode_values(values, coding, "place")
    assert len(code) == {Codec.INT8: 1004 + 4 * 4, Codec.INT4: 504 + 4 * 4}.get(codec, 2 * 1001)
    result = decode_values(code, 1001, codec, 256)
    np.testing.assert_array_equal(result.numpy(), coded_sums.round_by_codec(values.float().numpy(), codec, 256))


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_16_bit_codecs_keep_their_error_bound(codec):
    """Up to the largest value of a codec's range, and over subnormal numbers."""
    rng = np.random.default_rng(3)
    values = np.concatenate([adversarial(rng, 500) for _ in range(40)])
    values = np.append(values[np.abs(values) <= LARGEST[codec]], [LARGEST[codec], -LARGEST[codec]]).astype(np.float32)
    result = torch.from_numpy(values).to(getattr(torch, codec)).to(torch.float32).numpy()
    np.testing.assert_array_equal(result, coded_sums.SHORT[codec](values))
    for before, after in zip(values.tolist(), result.tolist(), strict=True):
        off = abs(Fraction(after) - Fraction(before))
        assert off <= UNIT_ROUNDOFF[codec] * abs(Fraction(before)) + UNDERFLOW[codec]


def test_error_feedback_adds_the_residual_to_the_next_values():
    """With error feedback, the outputs of many roundings differ from the inputs by one residual in total."""
    coding = Coding(Transport(codec=Codec.INT8, error_feedback=True), leftovers=Leftovers())
    rng = np.random.default_rng(2)
    total, sent = np.zeros(300), np.zeros(300)
    for _ in range(50):
        values = torch.from_numpy(rng.standard_normal(300).astype(np.float32))
        total += values.numpy()
        sent += decode_values(encode_values(values, coding, "place"), 300, Codec.INT8, 256).numpy()
    left = coding.leftovers.state()["place"].numpy()
    np.testing.assert_allclose(total - sent, left, atol=1e-4)
    assert np.abs(left).max() < 0.05
    coding.leftovers.keep("place", torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 1.5]))
    assert coding.leftovers.state()["place"].tolist() == [0.0, 0.5]


def test_loaded_residuals_are_added_on_the_device():
    left = Leftovers()
    left.load({"place": torch.ones(3)})
    left.add_to("place", values := torch.zeros(3, device="meta"))
    left.keep("place", values, torch.zeros(3, device="meta"))
    assert left.state()["place"].device.type == "meta"


def test_codings_save_and_load_residuals_only_with_feedback():
    assert Codings.of(Transport(), 2) is None
    plain = Codings.of(Transport(codec=Codec.BFLOAT16), 2)
    assert plain.state() == {}
    assert [coding.leftovers for coding in plain.of_buckets] == [None, None]
    fed_back = Codings.of(Transport(codec=Codec.INT8, error_feedback=True), 2)
    assert list(fed_back.state()) == ["feedback"], "a checkpoint must record that there is no residual yet"
    fed_back.of_buckets[1].leftovers.keep("flat sum", torch.ones(3), torch.zeros(3))
    saved = {name: tensor.clone() for name, tensor in fed_back.state().items()}
    fed_back.clear()
    assert list(fed_back.state()) == ["feedback"]
    fed_back.load_state(saved)
    assert fed_back.state()["feedback/1/flat sum"].tolist() == [1.0, 1.0, 1.0]


def test_sum_error_bounds_scale_as_derived():
    one = rounding_error("int8")
    flat = coded_sums.sum_error("int8", 16)
    assert 2 * one < flat.relative < 2 * one + one**2 + Fraction(1, 2**18), "two roundings, whatever the members"
    assert coded_sums.sum_error("int8", 1024).relative < flat.relative * Fraction(101, 100)
    staged = coded_sums.sum_error("int8", 16, on_each_node=4)
    across = coded_sums.sum_error("int8", 16, on_each_node=4, across_only=True)
    assert across.relative < Fraction(101, 100) * flat.relative < staged.relative < Fraction(155, 100) * flat.relative
    unit = UNIT_ROUNDOFF["float16"]
    assert coded_sums.sum_error("float16", 2).relative == (1 + unit) ** 2 - 1
    assert coded_sums.sum_error("float16", 16).relative == (1 + unit) ** 16 - 1
    assert (
        coded_sums.sum_error("float16", 16, through_servers=True).relative
        < coded_sums.sum_error("float16", 16).relative / 5
    )
