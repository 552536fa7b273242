"""The steps of a training run: which scenarios come next, their groups, the batches in flight, the updates."""
