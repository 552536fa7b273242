"""Questions to actors and their answers: each has a deadline, and its error says who was asked and what for.

An actor's errors come back as values, since an exception would arrive as Ray's own, with a traceback in its text.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from ray import cancel
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    TaskCancelledError,
    WorkerCrashedError,
)

from mcp_rl.errors import ClusterError, EngineStop, McpRlError, PartLost
from mcp_rl.system.boundary import first_line
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_GONE = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError)
_FULL = (
    "An object store of the cluster is full and cannot spill to its disk: start the nodes with a larger "
    "--object-store-memory, or free their temporary folder."
)


@dataclass(frozen=True)
class ActorAnswer:
    """The answer of an actor: a value, or the error that it raised."""

    value: Any = None
    error: McpRlError | None = None

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def answering(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[ActorAnswer]]:
    """Make an actor's method return its value or its error as an ActorAnswer."""

    @functools.wraps(method)
    async def answered(*arguments: Any, **named: Any) -> ActorAnswer:
        try:
            return ActorAnswer(await method(*arguments, **named))
        except McpRlError as error:
            return ActorAnswer(error=error)
        except Exception as error:
            print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
            return ActorAnswer(error=_unexpected(error))

    return answered


def _unexpected(error: Exception) -> McpRlError:
    if isinstance(error, ObjectStoreFullError | OutOfDiskError):
        return ClusterError(_FULL)
    return EngineStop(f"An actor failed with {type(error).__name__}: {without_secrets(first_line(error))}")


async def ask(who: str, answer: Any, seconds: float, what: str) -> Any:
    """Wait for an actor's answer, given as a reference to an ActorAnswer, and return its value or raise its error.

    Raises PartLost if the actor is gone or says nothing for `seconds`. If the asker is cancelled, so is the question.
    """
    try:
        with anyio.fail_after(seconds):
            said: ActorAnswer = await answer
    except TimeoutError:
        cancel(answer)
        raise PartLost(f"{who} did not {what} within {seconds:.0f} s") from None
    except asyncio.CancelledError:
        cancel(answer)
        raise
    except TaskCancelledError as error:
        raise PartLost(f"{who} was cancelled and did not {what}") from error
    except _GONE as error:
        raise PartLost(
            f"{who} {_ending(error)} before it could {what}", gone=isinstance(error, ActorDiedError)
        ) from error
    except RayError as error:
        if isinstance(error, ObjectStoreFullError | OutOfDiskError) or "OutOfDisk" in str(error):
            raise ClusterError(_FULL) from error
        raise EngineStop(f"{who} could not {what}: {type(error).__name__}: {first_line(error)}") from error
    return said.get()


def _ending(error: RayError) -> str:
    match error:
        case NodeDiedError():
            return "was lost with its node"
        case ActorDiedError():
            return "died"
        case ObjectLostError():
            return "lost an object that it needed"
        case _:
            return "was lost"
