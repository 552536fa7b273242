"""Whether there is a base model of a name, in a folder, in the local cache or on the hub, and which weights it has.
Nothing heavy is imported."""

import difflib
import hashlib
import re
from pathlib import Path

from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path

_REVISION_BYTES = 16 * 2**20
"""Of each weight file; the tiny model's is smaller, and of a large one the first layers tell."""


def check_base_model(name: str) -> None:
    """Raises ConfigError where there is no base model of that name, on the hub, on this machine or in a folder."""
    folder = Path(name).expanduser()
    if name == TINY:
        return
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"The folder {name} holds no config.json, so it is no base model.")
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
    """Whether a hub's model was loaded on this machine before. Raises HFValidationError for what can be no name."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def commit_of(name: str, revision: str | None = None) -> str | None:
    """The commit of a hub's model that is in the cache for a revision (None: the main branch); None for a folder, and
    where it is not there."""
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
    """Of the shipped weights or a folder: a hash of the weight files' beginnings and sizes. Empty for a hub's name."""
    folder = weights_path() if base_model == TINY else Path(base_model).expanduser()
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_REVISION_BYTES))
    return digest.hexdigest()[:16]
