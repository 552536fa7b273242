"""How this project is extended: hooks, what they register, and where plugins are found."""
