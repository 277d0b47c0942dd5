"""State that `p_reduce` keeps for a world: call numbers that do not depend on the timeout, and no world kept alive."""

import gc

import torch

from helpers.thread_ranks import on_ranks
from partreduce import p_reduce
from partreduce.runtime.averaging.p_reduce import _PReducer


@on_ranks(2, [1.5, 1.5])
def test_workers_may_change_their_timeouts_at_different_calls(world):
    tensor = torch.tensor([float(world.rank), 3.0])
    p_reduce(tensor, [0, 1], timeout=60, world=world)
    p_reduce(tensor, [0, 1], timeout=60 - world.rank, world=world)
    return float(tensor.mean()) - 0.25


@on_ranks(2, fresh=True)
def test_state_ends_with_its_world(world):
    p_reduce(torch.zeros(1), [0, 1], timeout=60, world=world)
    assert isinstance(world.p_reducer, _PReducer)
    assert not [one for one in gc.get_referrers(world.p_reducer) if one is not vars(world) and isinstance(one, dict)]
