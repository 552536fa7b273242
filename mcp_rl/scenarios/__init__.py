"""Scenarios: made from a live server, written by an author, read from files, split, and checked again.

`mcp-rl generate` runs `generate`: it opens the server, lets a source make scenarios (`sources`; the built-in source is
`builtin`, plugins offer others), lets an author work on them (`author/`), and marks their splits (`split`). A run takes
its scenarios from a file (`files`) or a source.

The built-in source, `explored`, makes tasks in this order: single calls that gave lasting results (`mcp_rl.explore`);
chains of calls in which one result is an argument of the next (`chain` proposes them, `grow` executes them); tasks that
change a state, with the looks that prove it (`stateful`, played on a `stage`); calls that the server refuses, requests
for missing tools, and requests that need no tool (`refusals`). `compose` gives each task its request (`wording`) and
its verifier, and drops near-duplicates (`duplicates`).

`reference` reads and stores reference solutions. `fit` compares scenarios with the server that they are to be played
on; `broken` executes reference solutions again and reports those that no longer hold.
"""
