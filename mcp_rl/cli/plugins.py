"""`mcp-rl plugins`."""

from mcp_rl.cli.options import Job, Json, Plugin


def plugins(plugin: Plugin = None, json: Json = False) -> Job:
    """List the plugins: version, origin, what each offers, and what was left out and why."""

    def job() -> int:
        from mcp_rl.plugins.listing import print_plugins

        return print_plugins(files=plugin or [], as_json=json)

    return job
