"""What a run leaves behind in its process: no hooks, exit functions, error translators or keepalive sockets."""

import gc
import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import wrap
from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce.errors import InputError, PeerFailedError, UnavailableError
from partreduce.runtime import optimizer as optimizer_module
from partreduce.runtime.launcher import processes
from partreduce.runtime.optimizer import _connecting
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.worker.config_handshake import HandshakeResult
from partreduce.runtime.worker.shutdown import Ending
from partreduce.strategies import AllReduce


@on_ranks(2)
def test_finish_removes_gradient_hooks(world):
    model = torch.nn.Linear(2, 1)
    for _ in range(3):
        optimizer = wrap(world, model, AllReduce())
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.average_gradients()
        optimizer.step()
        optimizer.finish()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_failed_run_is_not_kept_until_the_process_exits():
    engine = MagicMock()
    ending = Ending(engine, own_process=True)
    assert len(processes._explanations) == 1
    ending.after(PeerFailedError("worker 1 is gone"))
    kept = weakref.ref(ending)
    del ending, engine
    gc.collect()
    assert kept() is None
    assert not processes._explanations


def test_refused_schedule_closes_the_keepalive_sockets(monkeypatch):
    world, lifelines = SimpleNamespace(size=2, rank=0), MagicMock()
    monkeypatch.setattr(optimizer_module, "is_alone", lambda *_: False)
    monkeypatch.setattr(optimizer_module, "install_excepthook", lambda **_: None)
    monkeypatch.setattr(optimizer_module, "agree", lambda *_, **__: HandshakeResult(world, "1", lifelines))
    model = torch.nn.Linear(2, 1)
    with pytest.raises(InputError, match="4 workers"):
        DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, Schedule("four", Cluster.regular(1, 4), AllReduce())
        )
    lifelines.close.assert_called_once_with()


def test_input_error_while_groups_connect_is_noted_and_ends_the_heartbeat():
    world, heartbeat = MagicMock(), MagicMock()
    with pytest.raises(InputError), _connecting(world, heartbeat):
        raise InputError("two workers share a GPU")
    heartbeat.note.assert_called_once()
    assert heartbeat.note.call_args.args[0] == "left"
    heartbeat.stop.assert_called_once_with()
    world.abandon.assert_not_called()


def test_broadcast_over_a_broken_connection_is_unavailable():
    backend = MagicMock()
    backend.broadcast.side_effect = RuntimeError("Connection closed by peer\nin gloo")
    with pytest.raises(UnavailableError, match=r"^Connection closed by peer$"):
        Communicator((0, 1), 0, backend).broadcast(torch.zeros(1))
