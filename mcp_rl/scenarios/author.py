"""An author at work on scenarios: a language model that proposes tasks and gives requests natural words.

Nothing that it writes is believed. Values are compared, solutions are executed, and requests are read once more by
themselves; what does not hold is left out or left as it was, and the report says which and why.
"""

from collections.abc import Sequence

from mcp_rl.language_model import LanguageModel
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.scenarios.answer import parameter_defaults
from mcp_rl.scenarios.author_ask import Author
from mcp_rl.scenarios.author_propose import Proposer
from mcp_rl.scenarios.author_report import AuthorReport
from mcp_rl.scenarios.author_rewrite import Rewriter
from mcp_rl.scenarios.stage import Stage
from mcp_rl.toolserver.pool import Session, Sessions


async def author_scenarios(
    sessions: Sessions,
    session: Session,
    *,
    server: ToolServer,
    params: ServerParams,
    explored: Sequence[McpScenario],
    model: LanguageModel,
    tasks: int,
    steps: tuple[int, int] = (2, 4),
    keep_unverified: bool = False,
    seed: int = 0,
) -> tuple[list[McpScenario], AuthorReport]:
    """As many scenarios as were `explored`: at most `tasks` proposed ones first, the others in new words.

    What the author fails at stays as it was explored, and the report says how much that is. Raises LanguageModelError
    where the author never gave a usable reply, ServerFault where the server is lost.
    """
    report = AuthorReport(model.name, spent=model.spent)
    author = Author(model, report)
    stage = Stage(sessions, session, server, params)
    proposer = Proposer(
        author,
        stage,
        server,
        params,
        known=explored,
        defaults=parameter_defaults(stage.tools),
        resources=await session.connection.resources() if tasks else (),
        steps=steps,
        seed=seed,
        keep_unverified=keep_unverified,
    )
    proposed = await proposer.propose(tasks) if tasks else []
    author.begin()
    rewriter = Rewriter(author, stage, seed)
    rewritten = await rewriter.rewrite(explored[: len(explored) - len(proposed)])
    author.finish()
    return [*proposed, *rewritten], report
