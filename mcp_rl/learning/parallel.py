"""Several processes that learn one policy together (data-parallel), through torch.distributed.

Every rank gets the whole step's groups and works on its share of each minibatch: neighbours in the prefix tree, so that
what they share is computed once. Losses are normalised by the whole minibatch, so the sum of the ranks' gradients is
the gradient of one process; then every rank takes the same optimiser step. What a check decides on is summed over the
ranks first, so that all of them raise the same or none.

Numbers of a model travel by NCCL between GPUs and by gloo between CPUs; counts and columns always by gloo.
"""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mcp_rl.errors import CanaryError, EngineError
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.tally import Tally
from mcp_rl.learning.tree import split_evenly

T = TypeVar("T")
Column = npt.NDArray[np.float32]
BUCKET_ELEMENTS = 1 << 26
"""Gradients that are summed in one message: 256 MiB of float32."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class LostRank(EngineError):
    """A message between the ranks failed: another one is gone, or did not answer in time."""


class Ranks:
    """The processes that learn together, as one of them sees them."""

    def __init__(
        self, rank: int, size: int, store: "torch._C._distributed_c10d.Store", *, device: torch.device, timeout: float
    ) -> None:
        """Joins the others; returns when all are there. `timeout`, in seconds, is for each message: a rank that is
        alive and silent for so long counts as lost. Raises LostRank."""
        self.rank, self.size, self.device = rank, size, device
        self._aborted = False
        wait = timedelta(seconds=timeout)
        # What fails is broken off and raises here; else NCCL's own watchdog would take the whole process down with it.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        with reaching("joining"):
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
            self._plain = dist.new_group(backend="gloo", timeout=wait) if backend != "gloo" else dist.group.WORLD

    @property
    def leads(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def close(self) -> None:
        """Leave. Nothing waits for the others, as NCCL would for all of a machine to take leave at once."""
        self.abort()
        if dist.is_initialized():
            with suppress(RuntimeError):  # what was broken off before
                dist.destroy_process_group()

    def abort(self) -> None:
        """Break off what this rank is waiting for, from another thread: it raises there. GPUs only: a message between
        CPUs fails by itself when its other end has gone."""
        if self.device.type == "cuda" and not self._aborted and dist.is_initialized() and dist.group.WORLD is not None:
            self._aborted = True
            with suppress(RuntimeError):
                dist.group.WORLD.abort()

    def share(self, samples: Sequence[Sample], *, shared: bool = True) -> list[Sample]:
        """This rank's part of a minibatch, in its order; it may be empty."""
        parts = split_evenly([sample.tokens for sample in samples], self.size, shared=shared)
        return [samples[index] for index in parts[self.rank]]

    def everyones(self, own: T) -> list[T]:
        """What each rank gave, by rank: numbers, tensors, and lists, tuples and mappings of them.

        Whoever is on the machine can reach the port that gloo listens on, so nothing that could run is unpickled.
        """
        file = io.BytesIO()
        torch.save(own, file)
        content = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        with reaching("exchanging counts"):
            lengths = list(torch.zeros(self.size, 1, dtype=torch.int64))
            dist.all_gather(lengths, torch.tensor([len(content)]), group=self._plain)
            longest = int(max(lengths))
            gathered = list(torch.empty(self.size, longest, dtype=torch.uint8))
            dist.all_gather(gathered, F.pad(content, (0, longest - len(content))), group=self._plain)
        parts = (part[: int(length)] for part, length in zip(gathered, lengths, strict=True))
        return [torch.load(io.BytesIO(part.numpy().tobytes()), weights_only=True) for part in parts]

    def total(self, value: float) -> float:
        """The sum over the ranks, to the same bits on each of them."""
        return sum(self.everyones(value))

    def most(self, count: int) -> int:
        """The largest count of a rank."""
        return max(self.everyones(count))

    def merged(self, own: Tally) -> Tally:
        """What all ranks counted."""
        return Tally.of_all(Tally(**told) for told in self.everyones(vars(own)))

    def exchange(self, samples: Sequence[Sample], own: Sequence[Sample]) -> None:
        """Let every rank know the columns that the others computed for their shares of the samples."""
        place = {id(sample): index for index, sample in enumerate(samples)}
        columns = [
            (place[id(sample)], torch.from_numpy(sample.weights), _tensor(sample.old), _tensor(sample.reference))
            for sample in own
        ]
        for found in self.everyones(columns):
            for index, weights, old, reference in found:
                sample = samples[index]
                sample.weights, sample.old, sample.reference = weights.numpy(), _array(old), _array(reference)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Every parameter's gradient becomes the sum over the ranks; None stays None where no rank has one."""
        every = list(parameters)
        have = torch.tensor([float(p.grad is not None) for p in every], device=self.device)
        with reaching("summing gradients"):
            dist.all_reduce(have)
            for bucket in _buckets([p for p, count in zip(every, have.tolist(), strict=True) if count]):
                flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
                dist.all_reduce(flat)
                for p, summed in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                    p.grad = summed.view_as(p) if p.grad is None else p.grad.copy_(summed.view_as(p))

    def check_equal(self, parameters: Iterable[Tensor], step: int) -> None:
        """Raises CanaryError where the ranks' weights are not the same bits."""
        sums = torch.stack([_checksum(parameter.detach()) for parameter in parameters]).cpu().tolist()
        found = self.everyones(sums)
        different = [rank for rank, other in enumerate(found) if other != found[0]]
        if different:
            raise CanaryError(
                f"At step {step} the weights of learner {different[0]} of {self.size} are not those of learner 0, so "
                "the run stops before they learn different policies."
            )


def _tensor(column: Column | None) -> Tensor | None:
    return None if column is None else torch.from_numpy(column)


def _array(column: Tensor | None) -> Column | None:
    return None if column is None else column.numpy()


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, so many that a message is worth it."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > BUCKET_ELEMENTS or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def _checksum(values: Tensor) -> Tensor:
    """A sum [2] over the bits, each times an odd number of its place, so that swapping two values changes it too."""
    bits = values.contiguous().flatten().view(_BITS[values.element_size()]).to(torch.int64)
    places = torch.arange(1, 2 * len(bits), 2, device=bits.device)
    return torch.stack([bits.sum(), (bits * places * 0x9E3779B1).sum()])


@contextmanager
def reaching(doing: str) -> Iterator[None]:
    """What torch.distributed raises, as ours."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LostRank(f"Learners lost each other while {doing}: {line[:300]}") from error
