"""What this machine has, what a model needs, and the settings that follow. Nothing here imports torch.

`detect` looks, `model_shape` reads a model's configuration, and `plan` is a pure function of both: what "auto" comes
to, with the memory that it was reckoned by.
"""
