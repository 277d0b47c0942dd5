"""Load watch: notice `load_state_dict` on a model, which changes parameters between steps without being a step.

Runners that count whatever changed since an exchange as progress would send a loaded model to the others as such.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

import torch

from partreduce.runtime.averaging.module_hook import ModuleHook


class LoadCount:
    """How often a model, or a part of it, was loaded."""

    def __init__(self) -> None:
        self.count = 0


_watched: WeakKeyDictionary[torch.nn.Module, WeakSet[LoadCount]] = WeakKeyDictionary()


def count_loads(model: torch.nn.Module) -> LoadCount:
    """A count that grows with each `load_state_dict` of the model or of one of its modules."""
    loads = LoadCount()
    for module in model.modules():
        if module not in _watched:
            _watched[module] = WeakSet()
            module.register_load_state_dict_post_hook(_NoteLoad())  # type: ignore[no-untyped-call]
        _watched[module].add(loads)
    return loads


class _NoteLoad(ModuleHook):
    def __call__(self, module: torch.nn.Module, _incompatible_keys: object) -> None:
        for loads in _watched.get(module, ()):
            loads.count += 1
