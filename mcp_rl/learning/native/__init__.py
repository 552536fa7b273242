"""The forward and backward pass of a small model with an adapter over a prefix tree, compiled."""
