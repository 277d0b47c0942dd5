"""shard_dataset: the elements of each worker, errors and warnings."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from partreduce import shard_dataset
from partreduce.errors import InputError
from partreduce.runtime.data import sampler as sharding


@pytest.fixture(autouse=True)
def second_of_three(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(sharding, "_dealt", set())


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x).reshape(-1, 1)])
def test_shard_is_strided_by_default_and_contiguous_on_request(make):
    data = make([float(x) for x in range(11)])
    assert [float(x) for x in shard_dataset(data)] == [1, 4, 7]
    assert [float(x) for x in shard_dataset(data, order="contiguous")] == [3, 4, 5]
    assert type(shard_dataset(data)) is type(data)


def test_strings_and_datasets_are_sharded():
    assert shard_dataset("hello world!") == "o wo"
    assert shard_dataset(b"hello world!") == b"o wo"
    data = TensorDataset(torch.arange(11))
    part = shard_dataset(data)
    assert isinstance(part, Subset)
    assert [int(x) for (x,) in part] == [1, 4, 7]
    assert [int(x) for (x,) in shard_dataset(data, order="contiguous")] == [3, 4, 5]


def test_contiguous_shard_keeps_neighboring_tokens():
    """Every pair of neighbors in a contiguous shard is a pair of neighbors in the text, as bigram models need."""
    tokens = torch.randint(50, (999,), generator=torch.Generator().manual_seed(1))
    pairs = set(itertools.pairwise(tokens.tolist()))
    part = shard_dataset(tokens, order="contiguous").tolist()
    assert pairs.issuperset(itertools.pairwise(part))


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_integer_sequences_without_an_order_warn(make):
    tokens = make(list(range(12)))
    with pytest.warns(UserWarning, match="say order='strided' or order='contiguous'"):
        shard_dataset(tokens)
    with warnings.catch_warnings(action="error"):
        shard_dataset(tokens, order="strided")
        shard_dataset(torch.zeros(12, 3))
        shard_dataset(tokens)  # as many as the samples before: their labels


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Endless(), "a Endless has no length"),
        (iter([1, 2, 3]), "has no length"),
        ({"x": [1, 2, 3]}, "a dict has no order of samples"),
        ({1, 2, 3}, "a set has no order of samples"),
        (DataLoader(list(range(9))), "shard the data set, then make a loader"),
        (torch.tensor(3.0), "is a single number"),
        ([1, 2], "2 elements are fewer than the 3 workers"),
    ],
)
def test_unshardable_data_raises(data, message):
    with pytest.raises(InputError, match=message):
        shard_dataset(data)


def test_unknown_order_raises():
    with pytest.raises(InputError, match="'random' is not one of strided, contiguous"):
        shard_dataset([1, 2, 3], order="random")
