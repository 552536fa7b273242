"""The parts of a training run: what is prepared, which scenarios come next, how groups are scored, the steps."""
