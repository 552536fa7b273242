"""Tool servers: starting them, talking to them, and their tools as schemas that a model reads."""
