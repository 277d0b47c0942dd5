"""Tables whose rows are sent in a codec: the rows of workers and owners match a NumPy model bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import partreduce
from helpers.coded_sums import UNDERFLOW, rounding_error
from helpers.hybrid_runs import all_gather_json
from partreduce import Cluster, Hardware, Link
from partreduce.errors import HandshakeError, InputError
from partreduce.runtime.sharding.table import RowCode
from partreduce.strategies import Codec, Payload, Placement, TablePlacement
from partreduce.topo.codec_numbers import row_bytes

ROWS, COLUMNS, LOOKED_UP, STEPS, RATE = 24, 5, 9, 3, 0.5
CODECS = ("float16", "bfloat16", "int8")
PARTS = slice(0, 6), slice(4, LOOKED_UP)
"""The two lookups of a worker in a step, as slices of its rows; the second repeats some rows of the first."""


class Rows(nn.Module):
    """A table, and one parameter that all workers average."""

    def __init__(self, values, dtype=torch.float32):
        super().__init__()
        self.words = nn.Embedding(*values.shape)
        self.words.weight = nn.Parameter(torch.tensor(values, dtype=dtype))
        self.rest = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, ids):
        return self.words(ids)


def schedule_of(way=Placement.SHARDED, codec="float16", *, local=True, rows=ROWS, columns=COLUMNS):
    route = TablePlacement(parameter="words.weight", rows=rows, columns=columns, way=way, codec=codec)
    plain = partreduce.design("2x2", build="allreduce")
    payload = Payload(tables=(route,), local_aggregation=local)
    return replace(plain, strategy=replace(plain.strategy, payload=payload))


def wrap(model, schedule, world, rate=RATE):
    inner = torch.optim.SGD(model.parameters(), lr=rate)
    return partreduce.DistributedOptimizer(inner, model, schedule, world=world, timeout=60)


def round_rows(rows, codec):
    """Return [rows, columns] in float32 after encoding and decoding, by the definitions in docs/codecs.md."""
    if codec == "float16":
        return rows.astype(np.float16).astype(np.float32)
    if codec == "bfloat16":
        bits = rows.view(np.uint32)
        up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
        return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(peaks > 0, np.rint(rows * (np.float32(127) / peaks)), np.float32(0))
    levels = levels.astype(np.int8)  # which has one zero
    return (levels.astype(np.float32) * (peaks / np.float32(127))).astype(np.float32)


def draw_rows(seed):
    """Draw a table, and for every step and worker its rows and their gradients, of many magnitudes."""
    rng = np.random.default_rng(seed)
    table = (rng.normal(size=(ROWS, COLUMNS)) * 10.0 ** rng.integers(-6, 3, (ROWS, 1))).astype(np.float32)
    table[3] = 0
    ids = np.array([[rng.permutation(ROWS)[:LOOKED_UP] for _ in range(4)] for _ in range(STEPS)])
    shape = (STEPS, 4, LOOKED_UP, COLUMNS)
    return table, ids, (rng.normal(size=shape) * 10.0 ** rng.integers(-4, 2, shape)).astype(np.float32)


def replay_table(table, ids, gradients, way, codec, *, local):
    """Return (rows that each worker receives in each step, the table at the end)."""
    table, seen = table.copy(), []
    for step in range(STEPS):
        seen.append(
            [(round_rows(table, codec) if way is Placement.SHARDED else table)[ids[step, rank]] for rank in range(4)]
        )
        total = np.zeros_like(table)
        for members in [(0, 1), (2, 3)] if local else [(0,), (1,), (2,), (3,)]:
            passed = np.zeros_like(table)
            for rank in members:
                own = np.zeros_like(table)
                for part in PARTS:
                    own[ids[step, rank, part]] += gradients[step, rank, part]
                passed += own  # rounded once, however often a worker has looked a row up
            total += round_rows(passed, codec)  # rows without a gradient stay zero
        table -= np.float32(RATE) * (total / np.float32(4))
    return np.array(seen), table


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("way", "local"), [(Placement.SHARDED, True), (Placement.SHARDED, False), (Placement.GATHER, True)]
)
def test_coded_rows_match_a_numpy_model_bit_for_bit(ranks, way, local, codec):
    table, ids, gradients = draw_rows(CODECS.index(codec))

    def run(world):
        model, found = Rows(table), []
        optimizer = wrap(model, schedule_of(way, codec, local=local), world)
        for step in range(STEPS):
            optimizer.zero_grad()
            rows = [model(torch.tensor(ids[step, world.rank, part])) for part in PARTS]
            found.append(torch.cat([rows[0][:4], rows[1]]).detach().numpy().copy())
            pairs = zip(rows, PARTS, strict=True)
            loss = sum((one * torch.tensor(gradients[step, world.rank, part])).sum() for one, part in pairs)
            (loss + model.rest.sum()).backward()
            optimizer.step()
        kept = model.words.weight.detach().numpy().copy()
        saved = model.state_dict()["words.weight"]
        optimizer.finish()
        return np.array(found), kept, None if saved.is_meta else saved.numpy().copy()

    each = ranks.run(4, run)
    seen, expected = replay_table(table, ids, gradients, way, codec, local=local)
    for rank, (found, kept, _) in enumerate(each):
        assert found.tobytes() == seen[:, rank].tobytes()
        assert kept.tobytes() == (expected[rank::4] if way is Placement.SHARDED else expected).tobytes()
    assert each[0][2].tobytes() == expected.tobytes(), "state dicts hold unrounded rows"


def test_coded_rows_have_bounded_error_and_documented_size():
    rng = np.random.default_rng(3)
    rows = torch.tensor(rng.normal(size=(300, 7)) * 10.0 ** rng.integers(-40, 4, (300, 1)))
    for name, dtype in ((name, dtype) for name in CODECS for dtype in (torch.float32, torch.float64)):
        values = rows.to(dtype)
        code = RowCode(Codec(name), 7, dtype)
        coded = code.encode(values)
        assert coded.shape == (300, row_bytes(name, 7))
        decoded = code.decode(coded)
        assert decoded.dtype is dtype
        sizes = values.abs().amax(1, keepdim=True) if name == "int8" else values.abs()
        bound = float(rounding_error(name)) * sizes.double() + float(UNDERFLOW[name])
        assert bool(((decoded.double() - values.double()).abs() <= bound * (1 + 1e-6)).all())
        one_by_one = torch.cat([code.encode(row[None]) for row in values])
        assert torch.equal(one_by_one, coded), "the code of a row does not depend on its neighbors"
        assert torch.equal(torch.cat([code.decode(one[None]) for one in coded]), decoded)
        assert code.decode(code.encode(values[:0])).shape == (0, 7)


@pytest.mark.parametrize(
    ("codec", "dtype", "value", "is_lost"),
    [
        ("float16", torch.float32, 65519.0, False),
        ("float16", torch.float32, -65520.0, True),
        ("bfloat16", torch.float32, 3.3895e38, False),
        ("bfloat16", torch.float32, 3.4e38, True),
        ("int8", torch.float32, -1.7e38, False),
        ("float16", torch.float64, 1e300, True),
        ("bfloat16", torch.float64, 1e300, True),
        ("int8", torch.float64, 1e300, True),
    ],
    ids=str,
)
def test_overflow_is_reported_and_infinity_is_kept(codec, dtype, value, is_lost):
    rows = torch.tensor([[1.0, value, 0.0], [0.5, 0.25, 2.0]], dtype=dtype)
    code = RowCode(Codec(codec), 3, dtype)
    assert (code.lost(rows, code.encode(rows)) is not None) == is_lost
    assert bool(torch.isfinite(code.decode(code.encode(rows))).all()) != is_lost
    rows[0, 1] = torch.inf
    assert code.lost(rows, code.encode(rows)) is None
    decoded = code.decode(code.encode(rows))
    assert not bool(torch.isfinite(decoded[0, 1]))
    assert bool(torch.isfinite(decoded[1]).all()), "other rows are unchanged"


def error_of_all(ranks, table, act, schedule):
    """Return the error that all workers raise."""

    def run(world):
        model = Rows(table)
        act(model, wrap(model, schedule, world), world.rank)

    return all_gather_json(ranks, run)


@pytest.mark.parametrize("local", [True, False])
def test_row_beyond_the_range_stops_all_workers(ranks, local):
    table = draw_rows(0)[0]
    table[6, 2], table[6, 4], table[7, 1] = 1e6, -2e5, 5e6  # on workers 2, 2 and 3

    def act(model, _, rank):
        with torch.no_grad():
            model(torch.tensor({1: [6, 1], 2: [7]}.get(rank, [])).long())

    line = error_of_all(ranks, table, act, schedule_of(local=local))
    assert line == (
        "InputError: worker 2: parameter 'words.weight': a row that it hands out has 1e+06, beyond the largest number "
        "65504 of its route's codec float16; use the codec bfloat16 or int8, or keep its numbers smaller"
    )


@pytest.mark.parametrize("way", [Placement.SHARDED, Placement.GATHER])
def test_gradient_beyond_the_range_stops_all_workers_before_the_update(ranks, way):
    table, before = np.ones((ROWS, COLUMNS), dtype=np.float32), []

    def act(model, optimizer, rank):
        rows = model(torch.tensor([rank, 5]))
        (rows.sum() * (1e6 if rank == 3 else 1.0) + model.rest.sum()).backward()
        try:
            optimizer.step()
        finally:
            before.append(bool((model.words.weight == 1).all()))

    line = error_of_all(ranks, table, act, schedule_of(way))
    assert line.startswith(
        "InputError: worker 3: parameter 'words.weight': a gradient that it brings has 1e+06, beyond"
    )
    assert before == [True] * 4


def test_worker_with_another_codec_is_named(ranks):
    def run(world):
        wrap(Rows(draw_rows(0)[0]), schedule_of(codec="int8" if world.rank == 2 else "float16"), world)

    messages = ranks.texts(4, run, HandshakeError)
    assert all("schedule differs: rank 2 has" in line for line in messages), messages


def test_training_with_codecs_reaches_the_loss_of_exact_rows(ranks):
    """Rows learn their own targets in spite of rounded lookups and gradients."""
    rng = np.random.default_rng(1)
    table, targets = (rng.normal(size=(ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, ROWS, (8, 4, 16))

    def run(codec):
        def train(world):
            model = Rows(table)
            optimizer = wrap(model, schedule_of(codec=codec), world, rate=1.0)
            for step in range(len(ids)):
                rows = torch.tensor(ids[step, world.rank])
                optimizer.zero_grad()
                (((model(rows) - torch.tensor(targets)[rows]) ** 2).sum() / 4 + model.rest.sum()).backward()
                optimizer.step()
            state = model.state_dict()["words.weight"]
            optimizer.finish()
            return None if state.is_meta else float(((state.numpy() - targets) ** 2).mean())

        return ranks.run(4, train)[0]

    losses = {codec: run(codec) for codec in ("none", "float16", "int8")}
    first = float(((table - targets) ** 2).mean())
    assert losses["none"] < first / 100
    assert all(loss < losses["none"] + first / 1000 for loss in losses.values()), losses


def test_parallelize_uses_a_codec_that_saves_time(ranks):
    links = Hardware(inside=Link.of_bandwidth(5e9, 1e-5), nic=Link.of_bandwidth(25e6, 1e-5))

    def run(world):
        model = nn.Sequential(nn.Embedding(20_000, 64, sparse=True), nn.Linear(64, 1))
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.arange(200) * 7 + world.rank]
        where = Cluster.regular(2, 2, hardware=links)
        _, optimizer = partreduce.parallelize_embeddings(
            model, inner, where, batches=batches, table_codec="float16", world=world
        )
        optimizer.finish()
        return optimizer.schedule.routes.tables[0].in_words, optimizer.reasons[0]

    (words, reason), *others = ranks.run(4, run)
    assert others == [(words, reason)] * 3
    assert words == "sharded in float16"
    assert ": sharded in float16, " in reason


@pytest.mark.parametrize("codec", ["int4", "float16"])
def test_parallelize_rejects_an_unknown_or_conflicting_codec(codec):
    model = Rows(draw_rows(0)[0])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = "is not one of none, float16" if codec == "int4" else "says itself how its tables travel"
    with pytest.raises(InputError, match=expected):
        partreduce.parallelize_embeddings(model, inner, schedule_of(), table_codec=codec)
