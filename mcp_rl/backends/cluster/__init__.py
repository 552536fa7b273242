"""Runs on a Ray cluster (`backend = "ray"`): learners, engines and tool nodes are actors, placed by Ray.

The run directory, the scenarios, the scoring and the order of all random numbers stay with the driver. An episode is a
function of its scenario, its seed and the policy, so an episode whose actor was lost is played again on another one,
with the same seed and so with the same tokens. Nothing outside of this folder imports Ray.
"""
