"""Ask before a server of the MCP registry is used: `--server registry:NAME`."""

import sys
from collections.abc import Sequence

import typer


def confirm_registry_servers(texts: Sequence[str], transport: str | None, *, yes: bool) -> None:
    """Show what the servers among `texts` that come from the registry would run, and ask.

    Raises ConfigError if one cannot be used, or if the user does not agree or cannot be asked.
    """
    from mcp_rl.toolserver.mcp_registry.consent import PREFIX, propose

    for text in dict.fromkeys(texts):
        if text.startswith(PREFIX):
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
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was started.", file=sys.stderr)
        raise typer.Exit(130) from None
    if not agreed:
        raise ConfigError("Nothing was started.")
