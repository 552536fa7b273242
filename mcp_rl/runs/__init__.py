"""The commands about runs on disk: `history`, `fork`, `replay`."""
