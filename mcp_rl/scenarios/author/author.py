"""Scenarios by an author: a language model that proposes tasks and words requests naturally.

Nothing that it writes is trusted. Values are compared, solutions are executed, and each request is read back on its
own. A proposal that fails is dropped, a wording that fails is not used, and the report gives the reason of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.scenarios.author.ask import Author
from mcp_rl.scenarios.author.propose import Assignment, Proposer
from mcp_rl.scenarios.author.report import AuthorReport
from mcp_rl.scenarios.author.rewrite import Rewriter
from mcp_rl.scenarios.stage import Stage

if TYPE_CHECKING:
    from mcp_rl.inference.apis.language_model import LanguageModel
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session


async def author_scenarios(
    sessions: Sessions, session: Session, model: LanguageModel, work: Assignment
) -> tuple[list[McpScenario], AuthorReport]:
    """Return as many scenarios as were explored: at most `work.tasks` proposed ones first, the others in new words.

    A scenario at which the author fails stays as it was explored, and the report counts it. Raises LanguageModelError
    where the author never gave a usable reply, ServerFault where the server is lost.
    """
    report = AuthorReport(model.name, spent=model.spent)
    author = Author(model, report)
    stage = Stage(sessions, session, work.server, work.params)
    proposed: list[McpScenario] = []
    if work.tasks:
        proposed = await Proposer(author, stage, work, await session.connection.resources()).propose(work.tasks)
    author.begin()
    rewriter = Rewriter(author, stage, work.seed)
    rewritten = await rewriter.rewrite(work.explored[: len(work.explored) - len(proposed)])
    author.finish()
    return [*proposed, *rewritten], report
