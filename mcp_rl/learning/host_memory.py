"""A learner's tensors in the machine's memory, while an engine in another process needs the device's.

Every tensor stays the object that it is: parameters, buffers, the constants of quantised layers and the optimiser's
state point (`tensor.data`) at a copy in host memory, and later at a fresh one on the device. Copies are byte for byte,
so nothing that is computed afterwards changes. Frozen weights are copied to the host once and kept there; what
training changes is copied each time. Each move allocates everything before it changes anything, so one that fails
leaves the learner whole, where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mcp_rl.learning.learner import Learner

_DEPTH = 3
"""Levels of objects below a parameter in which its constants lie: 4 bits have a state, and that has a state."""

_LARGE = 1 << 20
"""Fewest bytes that are locked: smaller pieces share pages, which can be locked only once."""


@dataclass(frozen=True)
class _Piece:
    """A piece of memory and all tensors that lie in it."""

    tensors: tuple[Tensor, ...]
    frozen: bool

    @property
    def key(self) -> int:
        return id(self.tensors[0])

    @property
    def bytes(self) -> Tensor:
        """The whole piece, as bytes."""
        one = self.tensors[0]
        return torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage())

    def point_at(self, memory: Tensor) -> None:
        """Let all tensors lie in other memory that holds the same bytes."""
        for one in self.tensors:
            shape = one.storage_offset(), one.size(), one.stride()
            there = torch.empty(0, dtype=one.dtype, device=memory.device)
            one.data = there.set_(memory.untyped_storage(), *shape)


class HostMemory:
    """Moves a learner's tensors to the host and back; both moves may be called in any state."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kept: dict[int, Tensor] = {}
        """The host's memory of each piece, which is used again in every move."""
        self._locked: list[Tensor] = []
        self._away: list[_Piece] = []
        self.at_rest = False
        """True while the learner's tensors are on the host."""
        self.pinned = True
        """False if the driver could not lock some of the memory, which makes copies slower."""
        self.seconds = 0.0
        """Duration of the newest move."""

    @property
    def bytes(self) -> int:
        """Bytes of the host's memory that this takes, also while the learner works."""
        return sum(memory.nbytes for memory in self._kept.values())

    @torch.no_grad()
    def rest(self) -> None:
        """Move everything to the host. Raises RuntimeError or MemoryError, with everything on the device, if the host
        has too little memory."""
        if self.at_rest:
            return
        began, device = time.perf_counter(), self._learner.device
        pieces = list(_pieces(self._learner))
        for piece in pieces:
            here = self._kept.get(piece.key)
            if here is None or here.nbytes != piece.bytes.nbytes:
                here = self._kept[piece.key] = self._allocated(piece.bytes)
            elif piece.frozen:
                continue
            here.copy_(piece.bytes, non_blocking=True)
        _wait(device)
        for piece in pieces:
            piece.point_at(self._kept[piece.key])
        self._away, self.at_rest = pieces, True
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self.seconds = time.perf_counter() - began

    @torch.no_grad()
    def wake(self) -> None:
        """Move everything back to the device. Raises RuntimeError, with everything on the host, if the device has too
        little memory."""
        if not self.at_rest:
            return
        began, device = time.perf_counter(), self._learner.device
        there = []
        for piece in self._away:
            here = self._kept[piece.key]
            there.append(torch.empty(here.nbytes, dtype=torch.uint8, device=device).copy_(here, non_blocking=True))
        _wait(device)
        for piece, memory in zip(self._away, there, strict=True):
            piece.point_at(memory)
        self._away, self.at_rest = [], False
        self.seconds = time.perf_counter() - began

    def close(self) -> None:
        """Free the host's memory; the learner is not used any more."""
        for memory in self._locked:
            with suppress(RuntimeError):
                torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
        self._locked.clear()
        self._kept.clear()
        self._away = []

    def _allocated(self, like: Tensor) -> Tensor:
        """Return host memory of a size, locked so that the device reads it by itself. torch's own locked memory is
        rounded up to powers of two."""
        memory = torch.empty(like.nbytes, dtype=torch.uint8)
        if self._learner.device.type == "cuda" and self.pinned and like.nbytes >= _LARGE:
            if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):  # type: ignore[no-untyped-call]
                self.pinned = False
                with suppress(RuntimeError):  # the next kernel reports the driver's refusal as its own error
                    torch.zeros(1, device=self._learner.device)
            else:
                self._locked.append(memory)
        return memory


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _pieces(learner: Learner) -> Iterator[_Piece]:
    """Yield each piece of the device's memory that the learner holds between two updates."""
    found: dict[int, tuple[dict[int, Tensor], bool]] = {}
    for tensor, frozen in _tensors(learner):
        if tensor.device == learner.device and tensor.untyped_storage().nbytes():
            known, still = found.get(tensor.untyped_storage().data_ptr(), ({}, True))
            found[tensor.untyped_storage().data_ptr()] = {**known, id(tensor): tensor}, still and frozen
    for tensors, frozen in found.values():
        yield _Piece(tuple(tensors.values()), frozen)


def _tensors(learner: Learner) -> Iterator[tuple[Tensor, bool]]:
    """Yield the learner's tensors, and whether each never changes."""
    models: list[torch.nn.Module | None] = [learner.model, learner.reference]
    for model in models:
        for module in model.modules() if model is not None else ():
            for parameter in module.parameters(recurse=False):
                yield parameter, not parameter.requires_grad
                yield from ((constant, True) for constant in _constants(vars(parameter).values()))
            yield from ((buffer, False) for buffer in module.buffers(recurse=False))
            if (state := vars(module).get("state")) is not None:  # of a layer in 8 bits
                yield from ((constant, True) for constant in _constants([state]))
    for values in learner.optimizer.state.values():
        yield from ((value, False) for value in values.values() if isinstance(value, Tensor))


def _constants(values: Iterable[Any], depth: int = _DEPTH) -> Iterator[Tensor]:
    """Yield the tensors among some values and in the objects that they are, such as the scales of a quantised
    layer."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth and isinstance(value, Mapping):
            yield from _constants(value.values(), depth - 1)
        elif depth and type(value).__module__.partition(".")[0] == "bitsandbytes":
            yield from _constants(vars(value).values(), depth - 1)
