"""Questions about the rows of tables, each of which stands on one thing, such as a page."""
