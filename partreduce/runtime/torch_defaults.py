"""Run calls without the script's inference mode and default device, on which tensors that we keep must not depend."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def is_in_default_modes() -> bool:
    """Return whether neither inference mode nor a default device other than the CPU is active."""
    if torch.is_inference_mode_enabled():
        return False
    no_modes = torch._C._len_torch_function_stack() == 0  # noqa: SLF001 - torch has no public way
    return no_modes or torch.get_default_device().type == "cpu"


@contextlib.contextmanager
def default_modes() -> Iterator[None]:
    """Context in which inference mode is off and new tensors are in host memory unless a device is given."""
    with contextlib.ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(mode=False))
        if not is_in_default_modes():
            modes.enter_context(torch.device("cpu"))
        yield


def in_default_modes(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function so that it runs inside `default_modes`."""

    @functools.wraps(call)
    def call_in_default_modes(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if is_in_default_modes():
            return call(*arguments, **named)
        with default_modes():
            return call(*arguments, **named)

    return call_in_default_modes


def keep_user_modes(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Return a closure that runs with the caller's default device, for use inside `default_modes`."""
    if is_in_default_modes():
        return closure
    device = torch.get_default_device()

    def call_in_default_modes() -> Any:  # noqa: ANN401 - what the closure returns
        with device:
            return closure()

    return call_in_default_modes
