"""Questions to an author: several at once, until the author fails repeatedly or reaches its cost limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from mcp_rl.inference.apis.language_model import (
    Barred,
    CostLimitReached,
    LanguageModel,
    LanguageModelError,
    Message,
    Reply,
)
from mcp_rl.scenarios.author.forms import RULES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_rl.scenarios.author.report import AuthorReport

_IN_FLIGHT = 4
_GIVE_UP = 3
"""Number of questions in a row without a usable reply after which no more are asked."""
INVENTIVE = 0.8
"""The temperature at which an author writes."""
T = TypeVar("T")
R = TypeVar("R")


class Author:
    """A language model that is asked for one kind of work after another."""

    def __init__(self, model: LanguageModel, report: AuthorReport) -> None:
        self._model, self.report = model, report
        self._lost_in_a_row = 0
        self._stopped = self._over = self._answered = False
        self._error: LanguageModelError | None = None
        self._limiter = anyio.CapacityLimiter(_IN_FLIGHT)

    @property
    def given_up(self) -> bool:
        """True once no more questions will be asked for the current work."""
        return self._stopped or self._over

    def begin(self) -> None:
        """Begin another kind of work, with a new chance unless the cost limit or access stopped the last one."""
        self._lost_in_a_row, self._stopped = 0, False

    async def ask(
        self,
        question: str,
        form: type[Reply],
        check: Callable[[Reply], str | None],
        *,
        seed: int,
        temperature: float = INVENTIVE,
    ) -> Reply | None:
        """Ask and return the reply, or None where no usable reply came."""
        messages: list[Message] = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
        async with self._limiter:
            if self.given_up:
                return None
            try:
                reply = await self._model.ask(messages, form, check, seed=seed, temperature=temperature)
            except CostLimitReached as limit:
                if not self._over:
                    self.report.stopped.append(str(limit))
                self._over = True
                return None
            except LanguageModelError as error:
                self.report.lost_batches += 1
                self._lost_in_a_row += 1
                self._error = error
                barred = isinstance(error, Barred)
                if not self.given_up and (barred or self._lost_in_a_row >= _GIVE_UP):
                    self.report.stopped.append(str(error))
                    self._stopped, self._over = True, barred
                return None
        self._lost_in_a_row, self._answered = 0, True
        return reply

    def finish(self) -> None:
        """End all work. Raises LanguageModelError where the author was asked and never gave a usable reply."""
        if self._error is not None and not self._answered:
            raise self._error

    async def each(self, batches: Sequence[T], job: Callable[[T], Awaitable[R]]) -> list[R]:
        """Run the job for all batches at once and return the results in order."""
        results: dict[int, R] = {}

        async def one(index: int, batch: T) -> None:
            results[index] = await job(batch)

        async with anyio.create_task_group() as tasks:
            for index, batch in enumerate(batches):
                tasks.start_soon(one, index, batch)
        return [results[index] for index in range(len(batches))]
