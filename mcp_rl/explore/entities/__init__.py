"""The world behind a server, as its own calls tell it: entities, their fields, and the calls that show or change them.

Start reading at `world_model.py`.
"""
