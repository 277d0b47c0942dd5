"""Notes: small texts that the workers of a run leave for one another in its store.

The run-time calls the store here and nowhere else; only torch itself does, too, when groups connect. A store that is
gone raises RuntimeError, as torch does, and whoever asked knows what that means for the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.transport.torch_api import PrefixStore

if TYPE_CHECKING:
    from preduce.runtime.transport.torch_api import Store

DEATHS = "preduce/dead"
"""Below all prefixes the launcher notes here how a worker ended, by rank."""


class Notes:
    """The notes of one purpose: all their keys begin with `prefix`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def write(self, key: str, text: str) -> None:
        """Leave a note, in place of an earlier one."""
        self._store.set(f"{self._prefix}/{key}", text)

    def read(self, key: str) -> str | None:
        """A note if it is there; never waits for it."""
        return self.wait_for(key) if self.has(key) else None

    def wait_for(self, key: str) -> str:
        """A note that is there or is sure to come; waits up to the store's own timeout."""
        return self._store.get(f"{self._prefix}/{key}").decode()

    def has(self, *keys: str) -> bool:
        """Whether all these notes are there; one question to the store."""
        return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def count(self, key: str, increase: int = 0) -> int:
        """A counter that all workers share, after this increase."""
        return self._store.add(f"{self._prefix}/{key}", increase)

    def propose(self, key: str, text: str) -> str:
        """The text that was proposed first under this key, by this worker or by another."""
        return self._store.compare_set(f"{self._prefix}/{key}", "", text).decode()


def root_store(store: Store) -> Store:
    """The store below all prefixes, where the launcher leaves word of workers that died."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
