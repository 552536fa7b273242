"""Extending this project: the hooks, the registries that they fill, and the search for plugins."""
