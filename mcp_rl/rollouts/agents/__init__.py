"""Agent programs: episodes that a user's own program drives, which asks us as it would ask any model."""
