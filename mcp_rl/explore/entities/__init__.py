"""The world behind a server, as its own calls tell it: entities, their fields, and the calls that show or change them.

Start reading at `world_model.py`, the form of a model, then `builder.py`, which builds one: `survey` makes the calls,
`forms/` reads records out of their results, `sightings` gives these a noun, `merging` makes things (`things`) of them,
and `assembly` puts the model together out of what two episodes showed alike.
"""
