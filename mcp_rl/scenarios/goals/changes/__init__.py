"""Goal tasks that change something: a choice of things and a change of each, in words and as calls."""
