"""Checks that a base model of a name exists, in a folder, in the local cache or on the hub, and identifies its weights.

Imports nothing heavy.
"""

import difflib
import hashlib
import re
from pathlib import Path

from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path

_REVISION_BYTES = 16 * 2**20
"""Bytes of each weight file that are hashed: all of the tiny model's, the first layers of a large one's."""


def check_base_model(name: str) -> None:
    """Raise ConfigError if there is no base model of that name on the hub, on this machine or in a folder."""
    folder = Path(name).expanduser()
    if name == TINY:
        return
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"The folder {name} holds no config.json, so it is not a base model.")
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"The folder {name} holds an adapter (adapter_config.json) beside a model, and loading it would load "
                "the adapter's own base: name that base, and begin with the adapter by --init."
            )
    elif folder.is_absolute() or name.startswith("."):
        raise ConfigError(f"There is no base model in {name}: there is no such folder.")
    else:
        _check_hub_model(name)


def _check_hub_model(name: str) -> None:
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    nearest = difflib.get_close_matches(name, [TINY], cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "; give a Hugging Face model or a folder with one."
    try:
        if not in_cache(name):
            HfApi().model_info(name, timeout=20)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise ConfigError(f"There is no base model {name!r}{hint}") from error
    except (httpx.HTTPError, OSError) as error:
        raise ConfigError(
            f"The base model {name!r} is neither a folder nor in the local cache, and the model hub cannot be "
            f"reached{hint}"
        ) from error


def in_cache(name: str) -> bool:
    """Return whether the hub's model is in this machine's cache. Raises HFValidationError for an invalid name."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def commit_of(name: str, revision: str | None = None) -> str | None:
    """Return the cached commit of a hub's model for a revision (None: the main branch); None for a folder, or if it is
    not in the cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if name == TINY or Path(name).expanduser().is_dir():
        return None
    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    commit = Path(found).parent.name if isinstance(found, str) else ""
    return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None


def base_revision(base_model: str) -> str:
    """Return a hash of the beginnings and sizes of the weight files in a folder or of the shipped weights; empty for a
    hub's name."""
    folder = weights_path() if base_model == TINY else Path(base_model).expanduser()
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_REVISION_BYTES))
    return digest.hexdigest()[:16]
