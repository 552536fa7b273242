"""States to be brought about: a choice of things and an effect on each of them, in words and as calls."""
