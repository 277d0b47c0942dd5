"""Parallax's paper: the data that it trains on, and ways of exchanging tables that agree with one device."""

import numpy as np
import pytest
import torch

from benchmarks.papers.tables.baselines import Gathered, Servers
from benchmarks.papers.tables.clicks import Clicks
from benchmarks.papers.tables.models import ClickData, ClickModel
from benchmarks.papers.tables.text import text
from helpers.thread_ranks import ThreadRanks

SIZE, STEPS = 4, 3


def adagrad(parameters, is_table):
    """With an eps above what sums round to: steps of numbers that cancel would else go either way."""
    return torch.optim.Adagrad(parameters, lr=0.1 if is_table else 0.02, eps=1e-3)


def test_the_text_is_the_same_each_time_and_frequent_words_come_first():
    codes = text(("networkx",), 500)
    assert np.array_equal(codes, text(("networkx",), 500))
    counts = np.bincount(codes, minlength=500)
    assert len(codes) > 100_000
    assert (counts[1:] > 0).all()
    assert (np.diff(counts[1:]) <= 0).all()


def test_clicks_come_as_often_as_their_model_says():
    world = Clicks(fields=4, each=50)
    features, clicks = world.draw((1, 2), 40_000)
    chance = world.chance(features)
    assert np.array_equal(features, world.draw((1, 2), 40_000)[0])
    assert abs(clicks.mean() - chance.mean()) < 4 * np.sqrt(0.25 / len(clicks))
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 1.0)):
        part = (chance >= low) & (chance < high)
        assert abs(clicks[part].mean() - chance[part].mean()) < 4 * np.sqrt(0.25 / part.sum())
    counts = np.bincount(features[:, 0], minlength=50)
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.1)


def one_device():
    """Parameters after a few steps of the batches of all workers."""
    data, model = ClickData(), ClickModel(sparse=True)
    optimizers = [adagrad(model.dense(), False), adagrad(list(model.tables().values()), True)]
    for step in range(STEPS):
        model.zero_grad()
        for worker in range(SIZE):
            (model(data.batch(0, step, worker)) / SIZE).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("name", ["whole", "cut", "gathered"])
def test_baselines_train_as_one_device_with_all_batches(name):
    models = [ClickModel(sparse=True) for _ in range(SIZE)]

    def train(world):
        data, model = ClickData(), models[world.rank]
        world.create(tuple(range(SIZE)))
        if name == "gathered":
            way = Gathered(world.everyone(), model, adagrad)
        else:
            way = Servers(world.everyone(), model, adagrad, [0, 2], whole=name == "whole")
        for step in range(STEPS):
            model.zero_grad()
            batch = data.batch(0, step, world.rank)
            way.before(batch)
            model(batch).backward()
            way.step()
        if name != "gathered":
            model.zero_grad()
            everything = torch.arange(model.deep.num_embeddings)
            model.touched = lambda _: dict.fromkeys(model.tables(), everything)
            way.before(None)
        return model.state_dict()

    expected = one_device()
    for found in ThreadRanks(SIZE).run(SIZE, train):
        for key, tensor in found.items():
            assert torch.allclose(tensor, expected[key], atol=2e-6), key
