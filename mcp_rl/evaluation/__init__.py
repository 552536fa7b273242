"""Several models on the same scenarios, compared."""
