"""vLLM as what samples: its server started and watched over by us, or one that runs already."""
