"""Count the bytes of all living tensors, and their peak: exact, on any machine, in one process."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the storages that operations in the block allocate, forward and backward, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = self.largest = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        mine = {id(leaf.untyped_storage()) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in mine:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = None
        weakref.finalize(storage, self._freed, size)
        self.alive += size
        self.largest = max(self.largest, size)
        self.peak = max(self.peak, self.alive)

    def _freed(self, size: int) -> None:
        self.alive -= size
