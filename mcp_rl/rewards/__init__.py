"""Rewards of rollouts: from verifiers, judges, and functions of plugins.

`scoring` applies them in a run. A verifier (`verifier`, with the built-in kinds in `answers`, `structured`, `calls` and
`outcome`) returns a `Verdict` (`verdict`) on each rollout. Judges are language models that score the rollouts of a
group against each other (RULER): `ruler` holds the prompt, `transcript` renders the trajectories, `judge` asks one
model, `panel` combines several, `patience` waits for a judge that is down, `ledger` counts tokens and cost. `mix`
weighs the parts of a reward, `efficiency` charges for needless turns, errors and tokens. `clean_calls` is a built-in
reward.
"""
