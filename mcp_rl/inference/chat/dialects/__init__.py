"""Formats in which chat models write tool calls: a parser of sampled text in each module."""
