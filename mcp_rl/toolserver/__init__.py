"""Start tool servers, connect to them, and hand episodes sessions on them.

From the server up, each layer owns the one before it:

- A **connection** (`connection/`) is one open MCP client session and, for a server that we start, its process. One
  *owner task* opens, uses and closes it; callers queue requests and await futures. Nothing of the SDK is ever entered
  in one task and left in another.
- A **link** (`link.py`) is the interface that callers use: the listed tools and `call`. A `Connection` is a link; the
  other links wrap one or several: `OfferedLink` adds resources and prompts as tools, `GroupLink` joins servers,
  `RecordingLink` writes a cassette, and `ReplayLink` answers from one with no server at all.
- A **session** (`session.py`) is a link together with the tool schemas that a model sees on it.
- A **lease** is a session for one episode, in the state that the server's isolation promises: "shared" gives every
  episode the same session, "reset" puts the state back first, "per-rollout" opens a new connection.
- A **layer** (`sandbox/`) holds what one process of a server in a sandbox has written; isolation "layer" throws it away
  before each episode.
- A **slot** (`slots.py`) is room for one leased connection. `Slots` bounds how many are open at once.
- The pool, `Sessions` (`pool.py`), owns everything above for one server and closes it all when its context ends. Its
  `Connector` opens connections and retries a server that has worked before; its `ToolChoice` applies the user's choice
  of tools. A group of servers has one `Sessions` for each member.

`ToolServer` (`tool_server.py`) describes a server: how to reach it and how to isolate episodes on it. It comes from a
plugin, from an MCP client's configuration file (`client_files/`) or from the command line. `tools/` reads listings and
results, makes the schemas that a model sees, and validates arguments. `cassette/` records and replays calls.
"""
