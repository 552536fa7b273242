"""Whether there is a key for Weights & Biases, which its own packages find themselves."""

from __future__ import annotations

import netrc
import os
from urllib.parse import urlsplit


def has_key(base_url: str) -> bool:
    """Return whether the environment has a key, or the user's netrc has one for this address."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(urlsplit(base_url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
