"""Ask before a server of the MCP registry is used: `--server registry:NAME`."""

import sys
from collections.abc import Sequence


def confirm_registry_servers(texts: Sequence[str], transport: str | None, *, yes: bool) -> None:
    """Show what servers of the registry would run, and ask.

    Raises ConfigError if one cannot be used, or if the user does not agree or cannot be asked.
    """
    from mcp_rl.toolserver.mcp_registry.consent import propose

    for text in dict.fromkeys(texts):
        proposal = propose(text, transport)
        for line in proposal.lines:
            print(line, file=sys.stderr)
        if not yes:
            _ask(text)
        proposal.agree()


def _ask(text: str) -> None:
    from rich.console import Console
    from rich.prompt import Confirm

    from mcp_rl.errors import ConfigError

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"Nobody can be asked here whether to use {text}: read the lines above, then add --yes.")
    try:
        agreed = Confirm.ask("Use this server?", console=Console(stderr=True), default=False)
    except EOFError:
        agreed = False
    if not agreed:
        raise ConfigError("Nothing was started.")
