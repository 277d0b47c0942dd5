"""Wrap the few parts of torch.distributed that are private or missing from torch's type stubs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, GradBucket, Store
from torch._C._distributed_c10d import Work as TorchWork

__all__ = ["AllgatherOptions", "GradBucket", "Store", "TorchWork"]  # the others are made here

Method = TypeVar("Method", bound=Callable[..., Any])
PrefixStore: Any = dist.PrefixStore  # type: ignore[attr-defined]
TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
ProcessGroupGloo: Any = dist.ProcessGroupGloo


def default_store() -> Store:
    """Return the key-value store of the default process group, which must be initialized."""
    store: Store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    return store


def store_on(listening: socket.socket, host: str) -> Store:
    """Return a TCPStore that serves on a listening socket, which now belongs to it; `host` is this host's address."""
    port = listening.getsockname()[1]
    # Before torch 2.8 its libuv server does not accept such a socket (pytorch/pytorch#150215).
    libuv_listens = [int(number) for number in torch.__version__.split(".")[:2]] >= [2, 8]
    served: Store = TCPStore(
        host, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach(), use_libuv=libuv_listens,
    )  # fmt: skip
    return served


def torch_compile_disable(method: Method) -> Method:
    """Decorate a method so that torch.compile compiles neither it nor anything that it calls.

    torch marks its optimizers' steps in the same way; the public `torch.compiler.disable` would import the compiler.
    """
    marked: Any = torch._disable_dynamo(method)  # type: ignore[attr-defined]  # noqa: SLF001 - as said
    return marked  # type: ignore[no-any-return]


def nccl_backend() -> Any:  # noqa: ANN401 - a class that CPU builds of torch do not have
    """Return torch's class `ProcessGroupNCCL`, which CPU builds of torch lack."""
    return dist.ProcessGroupNCCL
