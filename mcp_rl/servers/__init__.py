"""The command `servers`: what there is, what one offers, whether it is fit to train on, a new one."""

from mcp_rl.servers.listing import print_servers
from mcp_rl.servers.new import new_server
from mcp_rl.servers.run import check_server, inspect_server

__all__ = ["check_server", "inspect_server", "new_server", "print_servers"]
