"""Exploration of a tool server by calls: arguments that work, and the results that they give.

`probe` makes the calls. It asks each tool's `Sampler` (`sample`) for arguments, which are drawn from the tool's JSON
Schema and always validate; strings for a `pattern` come from `pattern`, plausible words, names and dates from
`plausible`. Results and errors teach: `values_seen` keeps the paths, ids and names in them, and weights each source of
strings by how often it has worked for a parameter; `hints` reads ranges and allowed values out of error texts.

A call that succeeds is an `Outcome` (`outcome`): its `answer` is a number, a short text, or only the calls themselves,
and its `parts` are the values inside a JSON result that a request can ask for. Tools that answer equal calls
differently, or too slowly, are found unfit. `explorable` decides which tools may be called at all; `words` turns
identifiers into words; `tally` counts calls and finds while they are made.

`mcp_rl.scenarios` makes tasks of the outcomes. `check/` uses the same samplers for `mcp-rl servers check`; `measuring/`
finds out where a server keeps what its calls change.
"""
