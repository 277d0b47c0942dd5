"""Scripts that catch an error of an embedding table and continue: all workers raise each error once."""

import threading
import time
from dataclasses import replace

import pytest
import torch

from helpers.hybrid_runs import WORDS, Case, Model, data_of, part_of, start
from partreduce.errors import InputError
from partreduce.runtime.transport.store import Notes

CASE = Case("adam", dtype=torch.float64)


def test_caught_lookup_error_leaves_later_lookups_correct(ranks, monkeypatch):
    values, wait_for, slow = Model(CASE).words.weight.detach(), Notes.wait_for, []

    def later(notes, key):
        if threading.get_ident() in slow:
            time.sleep(0.15)  # meanwhile worker 2 passes the next invalid index
        return wait_for(notes, key)

    monkeypatch.setattr(Notes, "wait_for", later)

    def run(world):
        model, _ = start(CASE, world)
        messages, ids = [], torch.tensor([1, 5, 28]) - world.rank % 2
        if world.rank == 1:
            slow.append(threading.get_ident())
        for number, culprit in enumerate((2, 2, 0, 3)):
            try:
                with torch.no_grad():
                    model.words(ids + (number + 1) * WORDS * (world.rank == culprit))
            except InputError as error:
                messages.append(str(error).removesuffix("; its rows are 0..28"))
        with torch.no_grad():
            assert torch.equal(model.words(ids), values[ids])
        return messages

    lines = [f"worker {rank}: parameter 'words.weight': index {index} is out of range"
             for rank, index in ((2, 30), (2, 59), (0, 88), (3, 116))]  # fmt: skip
    assert ranks.run(4, run) == [lines] * 4


def test_caught_codec_overflow_leaves_rows_unchanged(ranks):
    case = replace(CASE, codec="float16", coalesces=False)
    values = Model(case).words.weight.detach()

    def run(world):
        model, optimizer = start(case, world)
        words, bags, _ = (array[0, 0] for array in part_of(data_of(case), world.rank))
        (model.words(words).sum() * (1e6 if world.rank == 3 else 1.0) + model.bag(bags).sum()).backward()
        with pytest.raises(InputError) as refusal:
            optimizer.step()
        with torch.no_grad():
            assert torch.equal(model.words(words), values[words]), "multiples of 1/8 are exact in float16"
        return str(refusal.value)

    (line,) = set(ranks.run(4, run))
    assert line.startswith("worker 3: parameter 'words.weight': a gradient that it brings has ")
