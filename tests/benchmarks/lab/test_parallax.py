"""Parallax's paper: the data that it trains on, and ways of exchanging tables that agree with one device."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from benchmarks.lab.text import text
from benchmarks.papers import parallax
from benchmarks.papers.parallax import rows
from benchmarks.papers.tables import (
    COMPOSED,
    COMPOSED_CODED,
    HYBRID,
    HYBRID_CODED,
    HYBRID_LOCAL,
    PLANNED,
    Found,
    Turn,
    ring_bytes,
    routes_of,
    server_bytes,
    tables_bytes,
    touched,
)
from benchmarks.papers.tables_worker import (
    BATCH,
    HOROVOD,
    TF_PS,
    TF_PS_IN_PAIRS,
    WORDS,
    Gathered,
    Language,
    LanguageData,
    Servers,
)
from helpers.thread_ranks import ThreadRanks
from partreduce.topo.strategies.payload import Placement

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


DATA = LanguageData(text(("networkx",), 4_000))


def one_device():
    """Parameters after a few steps of the batches of all workers."""
    model = Language(sparse=True)
    optimizers = [adagrad(model.dense(), False), adagrad(list(model.tables().values()), True)]
    for step in range(STEPS):
        model.zero_grad()
        for worker in range(SIZE):
            (model(DATA.batch(0, step, worker)) / SIZE).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("name", ["servers", "servers in pairs", "servers cut evenly", "gathered"])
def test_baselines_train_as_one_device_with_all_batches(name):
    models = [Language(sparse=True) for _ in range(SIZE)]

    def train(world):
        model = models[world.rank]
        world.create(tuple(range(SIZE)))
        if name == "gathered":
            way = Gathered(world.everyone(), model, adagrad)
        else:
            options = {"in_pairs": name == "servers in pairs", "cut": name == "servers cut evenly"}
            way = Servers(world.everyone(), model, adagrad, [0, 2], **options)
        for step in range(STEPS):
            model.zero_grad()
            batch = DATA.batch(0, step, world.rank)
            way.before(batch)
            model(batch).backward()
            way.step()
        if name != "gathered":
            model.zero_grad()
            everything = torch.arange(WORDS)
            model.touched = lambda _: dict.fromkeys(model.tables(), everything)
            way.before(None)
        return model.state_dict()

    expected = one_device()
    for found in ThreadRanks(SIZE).run(SIZE, train):
        for key, tensor in found.items():
            assert torch.allclose(tensor, expected[key], atol=2e-6), key


def found_of(session, seconds, losses=None):
    """What a session would leave in which each way's step takes so long."""
    turns = {
        way: [
            Turn(done=session.steps * turn, seconds=session.steps * taken * (1 + turn / 100), nic_bytes=4e6,
                 loss=losses and losses[turn])
            for turn in range(3)
        ]
        for way, taken in seconds.items()
    }  # fmt: skip
    guess = dict.fromkeys(session.ways, 0.5)
    return Found(
        session=session, turns=turns, predicted=guess, mean_wire=dict.fromkeys(session.ways, 1e6),
        shares={"encoder.weight": (0.01, 0.02, 0.05)}, same={PLANNED: HYBRID_LOCAL},
    )  # fmt: skip


def test_rows_say_what_sessions_left():
    ladder = parallax.ladder((4, 4))
    seconds = {
        TF_PS: 2.0,
        TF_PS_IN_PAIRS: 1.2,
        HOROVOD: 3.0,
        HYBRID: 1.6,
        HYBRID_LOCAL: 1.0,
        HYBRID_CODED: 0.5,
        COMPOSED: 0.8,
        COMPOSED_CODED: 0.4,
    }
    made = {row.key: row for row in rows(found_of(ladder, seconds))}
    assert made[parallax.SPEED, "language, 4x4: TF-PS"].measured == pytest.approx(16 * BATCH / 2.02)
    assert made[parallax.BYTES, "language, 4x4: hybrid"].measured == pytest.approx(4.0 / ladder.steps)
    assert made[parallax.OVER_PS, "language, 4x4: planner's choice"].measured == pytest.approx(2.0)
    assert made[parallax.OVER_MPI, "language, 4x4: planner's choice"].measured == pytest.approx(3.0)
    assert made[parallax.BETTER, "language, 4x4: hybrid"].measured == pytest.approx(1.25)
    assert made[parallax.FAIR, "language, 4x4: hybrid"].measured == pytest.approx(0.75)
    assert made[parallax.LOCAL, "language, 4x4: hybrid"].measured == pytest.approx(1.6)
    assert made[parallax.OWN, "language, 4x4: per step, over hybrid"].measured == pytest.approx(2.0)
    assert made[parallax.CODED, "language, 4x4: per step"].measured == pytest.approx(2.0)
    assert made[parallax.OWN, "language, 4x4: per step, rows in float16, over hybrid"].measured == pytest.approx(4.0)
    assert made[parallax.CHOICE, "language, 4x4"].measured == pytest.approx(1.0), "of the same mathematics"
    assert made[parallax.ROUTES, "language, 4x4"].measured == pytest.approx(1.0)

    loss = parallax.to_loss((4, 4))
    run = found_of(loss, {PLANNED: 1.0, COMPOSED: 0.8, HYBRID_CODED: 0.5, TF_PS: 2.0, HOROVOD: 3.0}, [8.0, 7.0, 6.0])
    run.turns[HOROVOD] = run.turns[HOROVOD][:2]  # the time was over
    made = {row.key: row for row in rows(run)}
    assert made[parallax.STEPS, "language, 4x4: TF-PS"].measured == pytest.approx(1.5 * loss.steps)
    assert made[parallax.LOSS_PS, "language, 4x4: planner's choice"].measured == pytest.approx(2.0)
    slow = made[parallax.SECONDS, "language, 4x4: Horovod"]
    assert slow.derived
    assert slow.measured == pytest.approx(1.5 * loss.steps * 3.015)
    assert parallax.FOUND.validate_python(json.loads(json.dumps(asdict(run)))) == run


def test_every_way_of_a_session_has_a_name_in_the_tables():
    listed = [make(shape) for make in parallax.PARTS.values() for shape in parallax.SHAPES]
    assert len({session.name for session in listed}) == len(listed)
    assert set(parallax.WAYS) >= {way for session in listed for way in session.ways}


def test_wire_counts_what_the_papers_count():
    model = Language(sparse=True)
    for shape, sharded, gathered in (((4, 4), 6.0, 15.0), ((16, 1), 1.875, 15.0)):
        shares = touched(model, lambda step, worker: DATA.batch(0, step, worker), shape, range(2))
        one = shares["encoder.weight"]
        num_bytes = one.worker * model.encoder.weight.numel() * 4
        routes = routes_of(model, Placement.SHARDED, aggregated=False, gradient="sparse")
        for way, times in ((Placement.SHARDED, sharded), (Placement.GATHER, gathered)):
            tables = tuple(replace(route, way=way) for route in routes.tables if route.parameter == "encoder.weight")
            sent = tables_bytes(replace(routes, tables=tables), shares, shape)
            assert sent == pytest.approx(times * num_bytes, rel=0.05)
    assert server_bytes([100, 0, 0, 0], (4, 4)) == (600.0, 1200.0)
    assert ring_bytes(160, (4, 4)) == 300
