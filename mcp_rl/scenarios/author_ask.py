"""Batches of questions to an author: several at once, and an end where it gives nothing or has cost enough."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from mcp_rl.language_model import Barred, CostLimitReached, LanguageModel, LanguageModelError, Message, Reply
from mcp_rl.scenarios.author_forms import RULES
from mcp_rl.scenarios.author_report import AuthorReport

_IN_FLIGHT = 4
_GIVE_UP = 3
"""Questions in a row without a usable reply, after which nothing more is asked."""
INVENTIVE = 0.8
"""The temperature at which an author writes."""
T = TypeVar("T")
R = TypeVar("R")


class Author:
    """A language model at work, one kind of work after the other."""

    def __init__(self, model: LanguageModel, report: AuthorReport) -> None:
        self._model, self.report = model, report
        self._lost_in_a_row = 0
        self._stopped = self._over = self._answered = False
        self._error: LanguageModelError | None = None
        self._limiter = anyio.CapacityLimiter(_IN_FLIGHT)

    @property
    def given_up(self) -> bool:
        """Whether nothing more will be asked for the present work."""
        return self._stopped or self._over

    def begin(self) -> None:
        """Begin another kind of work: it may go better, unless there is no money left or no way in."""
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
        """The reply, None where there is none."""
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
        """Raises LanguageModelError where the author was asked and never gave a usable reply."""
        if self._error is not None and not self._answered:
            raise self._error

    async def each(self, batches: Sequence[T], job: Callable[[T], Awaitable[R]]) -> list[R]:
        """The job's results for all batches, in their order, a few at once."""
        results: dict[int, R] = {}

        async def one(index: int, batch: T) -> None:
            results[index] = await job(batch)

        async with anyio.create_task_group() as tasks:
            for index, batch in enumerate(batches):
                tasks.start_soon(one, index, batch)
        return [results[index] for index in range(len(batches))]
