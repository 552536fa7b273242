"""`mcp-rl servers`."""

from mcp_rl.cli.options import Job, Json, Plugin


def servers(plugin: Plugin = None, json: Json = False) -> Job:
    """List the tool servers that the installed plugins offer."""

    def job() -> None:
        from mcp_rl.servers import print_servers

        print_servers(plugins=plugin or [], as_json=json)

    return job
