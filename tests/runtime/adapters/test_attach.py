"""`attach` with a GradScaler, its state dicts and rejected uses, which its idiom does not cover."""

import pytest
import torch

from partreduce import Cluster, DistributedOptimizer, Schedule, attach
from partreduce.errors import InputError
from partreduce.strategies import AllReduce

SCHEDULE = Schedule("every 2", Cluster.regular(1, 2), AllReduce(steps_per_round=2))


@pytest.fixture
def attached_script(monkeypatch, capfd):
    """A model, its optimizer and the schedule attached to it, in a single process."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, optimizer, attach(optimizer, model, SCHEDULE)


def test_step_skipped_by_grad_scaler_counts_and_changes_nothing(attached_script):
    model, optimizer, attached = attached_script
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step, size in enumerate((1.0, float("inf"), 3.0), start=1):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(model(torch.tensor([[size]])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(model.weight, before - (0.5 * size if size < 9 else 0.0))
        assert attached.steps == step
        assert not hasattr(optimizer, "found_inf")


def test_schedule_steps_are_in_the_state_dict_of_the_attached_optimizer(attached_script):
    model, optimizer, attached = attached_script
    for stepping in (optimizer, attached):  # both are one step
        model(torch.ones(1, 1)).sum().backward()
        stepping.step()
    assert "partreduce" not in optimizer.state_dict()
    state = attached.state_dict()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    attached.load_state_dict(state)
    assert (attached.steps, attached.round) == (2, 1)


@pytest.mark.parametrize("again", [attach, DistributedOptimizer])
def test_second_schedule_of_an_optimizer_is_rejected(attached_script, again):
    model, optimizer, _ = attached_script
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which also replaces its step method
    with pytest.raises(InputError, match=r"follows a schedule already, by partreduce\.attach"):
        again(optimizer, model, SCHEDULE)
