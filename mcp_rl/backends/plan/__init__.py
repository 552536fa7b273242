"""The machine, a model's memory needs, and the settings that follow from both. Nothing here imports torch.

`detect` looks at the machine, `model_shape` reads a model's configuration, and `plan` is a pure function of both: it
resolves every "auto" and states the memory estimate behind each choice.
"""
