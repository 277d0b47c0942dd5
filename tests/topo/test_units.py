"""Quantities with units: exact, case-sensitive, refused clearly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partreduce.errors import InputError
from partreduce.topo import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bandwidth, "10GB/s", 10e9),
        (units.parse_bandwidth, "25Gbit/s", 3.125e9),
        (units.parse_bandwidth, "800 Mbps", 1e8),
        (units.parse_bandwidth, "1.5GiB/s", 1.5 * 2**30),
        (units.parse_bandwidth, "1kB/s", 1000.0),
        (units.parse_bandwidth, "8bit/s", 1.0),
        (units.parse_time, "5us", 5e-6),
        (units.parse_time, "5µs", 5e-6),
        (units.parse_time, "50ms", 0.05),
        (units.parse_time, "0s", 0.0),
        (units.parse_time, "2min", 120.0),
        (units.parse_time, "1e-3s", 1e-3),
        (units.parse_size, "552MB", 552_000_000),
        (units.parse_size, "1.5GiB", 3 * 2**29),
        (units.parse_size, "12B", 12),
        (units.parse_factor, "5x", 5.0),
        (units.parse_factor, "1.25", 1.25),
    ],
)
def test_parse(parse, text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (units.parse_bandwidth, "10Gb/s", "bits or bytes"),
        (units.parse_bandwidth, "10", "has no unit"),
        (units.parse_bandwidth, "10GB", "unknown unit"),
        (units.parse_bandwidth, "0GB/s", "must be > 0"),
        (units.parse_bandwidth, "-1GB/s", "is negative; write a positive number"),
        (units.parse_bandwidth, "infGB/s", "is not a bandwidth"),
        (units.parse_bandwidth, "1e400GB/s", "is too large or too small for a bandwidth"),
        (units.parse_bandwidth, "", "is not a bandwidth"),
        (units.parse_bandwidth, "9" * 10**6, "is not a bandwidth"),
        (units.parse_time, "5", "has no unit"),
        (units.parse_time, "5MS", "unknown unit"),
        (units.parse_time, "５ms", "is not a time"),
        (units.parse_size, "0.5B", "not a whole number of bytes"),
        (units.parse_size, "5Mb", "bits or bytes"),
        (units.parse_size, "9007199254740993B", "more than 9 PB"),
        (units.parse_size, "552Mb", "could mean bits or bytes, and a size is in bytes; write 552MB for bytes$"),
        (units.parse_size, "552mb", "did you mean 552MB"),
        (units.parse_size, "2 Gib", "could mean bits or bytes, and a size is in bytes; write 2GiB for bytes$"),
        (units.parse_size, "5M", "did you mean 5MB"),
        (units.parse_bandwidth, "10Gb/s", "write 10GB/s for bytes or 10Gbit/s for bits$"),
        (units.parse_bandwidth, "10Gb", "write 10GB/s for bytes or 10Gbit/s for bits$"),
        (units.parse_bandwidth, "10GB", "did you mean 10GB/s"),
        (units.parse_bandwidth, "10gbit/s", "did you mean 10Gbit/s"),
        (units.parse_time, "5MS", "did you mean 5ms"),
        (units.parse_factor, "5X", "did you mean 5x"),
        (units.parse_factor, "0x", "must be > 0"),
        (units.parse_factor, "5 y", "unknown unit"),
        (units.parse_factor, "5x\n6x", "factor"),
    ],
)
def test_refuse(parse, text, words):
    with pytest.raises(InputError, match=words) as caught:
        parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.sampled_from(sorted(units.TIMES)))
def test_formatted_times_read_back_exactly(number, unit):
    value = units.parse_time(f"{number}{unit}")
    text = units.format_quantity(value, units.TIMES)
    assert text is None or units.parse_time(text) == value


def test_format_prefers_the_shortest():
    assert units.format_quantity(10e9, units.BANDWIDTHS) == "10GB/s"
    assert units.format_quantity(0.05, units.TIMES) == "50ms"
    assert units.format_quantity(552_000_000, units.SIZES) == "552MB"
    assert units.format_quantity(1 / 3, units.TIMES) is None


@pytest.mark.parametrize("parse", [units.parse_bandwidth, units.parse_time, units.parse_size, units.parse_factor])
@pytest.mark.parametrize("unit", ["Mb", "mb", "gb/s", "KBPS", "Gib", "MS", "X", "g", "TBIT/S", "Gb", "m", "MiB/S", "b"])
def test_what_a_refusal_suggests_is_understood(parse, unit):
    try:
        parse(f"8{unit}")
    except InputError as error:
        advice = str(error).partition("; write ")[2] or str(error).partition("did you mean ")[2]
        for words in advice.strip("?").split(" or "):
            word = words.split(" ")[0]
            assert not word.startswith("8") or parse(word)
