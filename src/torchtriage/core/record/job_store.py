"""The store that a job's ranks met at, over a connection of our own: what is asked there holds up no other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

TIMEOUT = timedelta(seconds=5)


def process_group() -> tuple[int, int] | None:
    """Return this process' rank and the number of ranks, None where ``torch.distributed`` is not initialised."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


@contextmanager
def _of_the_store() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(str(error)) from error


class JobStore:
    """Bytes by name, of all ranks; not one of its calls is a collective. Raises ConnectionError: the store is gone."""

    @_of_the_store()
    def __init__(self, prefix: str) -> None:
        from torch.distributed import PrefixStore
        from torch.distributed.distributed_c10d import _get_default_store

        self._store = PrefixStore(prefix, _connected(_get_default_store()))
        self._store.set_timeout(TIMEOUT)
        self._there: set[str] = set()

    @_of_the_store()
    def set(self, name: str, data: bytes) -> None:
        """Tell something, in the place of what was told before."""
        self._store.set(name, data)

    @_of_the_store()
    def get(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return what is there now."""
        new = [name for name in names if name not in self._there]
        if new and self._store.check(new):
            self._there.update(new)
        else:
            self._there.update(name for name in new if self._store.check([name]))
        there = [name for name in names if name in self._there]
        if not there:
            return {}
        if self._store.has_extended_api():
            return dict(zip(there, self._store.multi_get(there), strict=True))
        return {name: self._store.get(name) for name in there}


def _connected(store: Any) -> Any:
    if hasattr(store, "clone"):
        return store.clone()
    from torch.distributed import PrefixStore, TCPStore

    plain = store._underlying_non_prefix_store  # before 2.9
    own = TCPStore(plain.host, plain.port, None, False, TIMEOUT, wait_for_workers=False)
    return PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", own)
