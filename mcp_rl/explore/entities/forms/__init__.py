"""Readers of results: one for each form in which servers write their data.

`reading.py` chooses among them; start there.
"""
