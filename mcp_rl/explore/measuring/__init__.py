"""Measures where a server keeps what its calls change, on real processes in sandboxes.

Start reading at `measure.py`, which compares processes: `processes` starts them, `working` finds calls to compare,
`calls` makes them, `seen` says what differs, and `filling` fills a server that begins empty.
"""
