"""The dense gradient of a shard: a tensor of which torch's own clipping would take a part for the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from partreduce.topo.errors import InputError

_NORMS = (torch._foreach_norm, torch.linalg.vector_norm)  # noqa: SLF001 - what torch.nn.utils.clip_grad_norm_ calls


class ShardGradient(torch.Tensor):
    """A gradient of a table's rows on one worker. Everything may be done with it except torch's gradient clipping.

    (Torch's clipping fails by itself for sparse gradients.)
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Refuse norms of parts.

        Raises:
            InputError: torch's `clip_grad_norm_` or `get_total_norm` was called.
        """
        if func in _NORMS:
            first = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            name = next((one.table for one in first if isinstance(one, ShardGradient)), "?")
            raise InputError(
                f"parameter {name!r}: its rows are spread over the workers, so torch's clip_grad_norm_ would clip by "
                "another norm on each; call partreduce.clip_grad_norm_ instead, with the same arguments"
            )
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's documented way
            return func(*args, **(kwargs or {}))

    table: str
    """The parameter's name."""


def guarded_gradient(gradient: torch.Tensor, table: str) -> torch.Tensor:
    """The same numbers, of which torch's clipping refuses to take the norm."""
    guarded = gradient.as_subclass(ShardGradient)
    guarded.table = table
    return guarded
