"""A server of one tool, which counts all its calls and shows the number in its answers alone."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("tally")
counted: list[str] = []


@server.tool()
def count_up(word: str, times: int) -> dict[str, str | int]:
    """Count a word."""
    counted.append(word)
    return {"word": word, "letters": times * len(word), "counted": len(counted)}


server.run()
