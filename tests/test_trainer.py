"""A run's steps, with the real server, engine, learner and checkpoints, and a model that is small enough to be quick."""
