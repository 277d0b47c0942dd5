"""Uses: what a forward pass does with a table's weight besides looking rows up, which needs all rows in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.overrides import TorchFunctionMode

from partreduce.runtime.sharding.found import embeddings_of

LOOKUPS = (F.embedding, F.embedding_bag, torch.embedding, torch.embedding_bag)
SHAPES_ONLY = ("new_", "_like")
"""In the names of functions that take a tensor's type and size, not its numbers."""


class OtherUses(TorchFunctionMode):
    """Inside, `found` gets for each table's name the first function that took its weight and gave a tensor.

    So a weight that is the output layer's, too (`F.linear(hidden, embedding.weight)`), is seen, of which the modules
    know nothing. O(arguments) for each call of torch.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, (parameter, _) in embeddings_of(model).items()}
        self.found: dict[str, str] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        result = func(*args, **(kwargs or {}))
        if func not in LOOKUPS and _has_tensor([result]):
            word = getattr(func, "__name__", "a function")
            if not any(part in word for part in SHAPES_ONLY):
                for name in self._tables_in([*args, *(kwargs or {}).values()]):
                    self.found.setdefault(name, "an attribute of it" if word == "__get__" else word)
        return result

    def _tables_in(self, values: Iterable[Any]) -> list[str]:
        flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
        return [self._names[id(one)] for one in flat if id(one) in self._names]


def _has_tensor(values: Iterable[Any]) -> bool:
    """Whether any of these is a tensor, or a list with one."""
    return any(isinstance(one, torch.Tensor) or (isinstance(one, (list, tuple)) and _has_tensor(one)) for one in values)
