"""`mcp-rl servers inspect` and `mcp-rl servers check`: the listing of a server, and its fitness to train on.

`inspection` lists a server. `fitness` runs the check in this order, over one connection (`caller`): findings about the
listing (`listed`), sampled calls (`trials`), calls at once, wrong calls and odd text (`hardship`), the end of the
server (`endings`); then episodes as a run plays them (`episodes`), and lines on standard output (`stray`). The wording
of every finding is in `catalogue`; `findings` holds the report.
"""
