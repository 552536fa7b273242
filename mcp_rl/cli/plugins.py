"""`mcp-rl plugins`."""

from mcp_rl.cli.options import Job, Json, Plugin


def plugins(plugin: Plugin = None, json: Json = False) -> Job:
    """List the plugins with version, origin and what each offers, and those that were left out, with reasons."""

    def job() -> int:
        from mcp_rl.cli.printing.plugin_tables import print_plugins

        return print_plugins(files=plugin or [], as_json=json)

    return job
