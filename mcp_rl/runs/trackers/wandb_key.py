"""Check for an API key of Weights & Biases. Its own packages read the key; we only ask if there is one."""

from __future__ import annotations

import netrc
import os
from urllib.parse import urlsplit


def has_key(base_url: str) -> bool:
    """Return True if WANDB_API_KEY is set or the user's netrc file has an entry for the host of this URL."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(urlsplit(base_url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
