"""Push an export to the Hugging Face hub: one repository, private unless asked otherwise, one commit.

`find_place` asks the hub everything that can be asked before anything is written: whether the token may write there,
and what the repository holds already. A commit arrives whole or not at all. The token is the one that the hub's own
client finds (HF_TOKEN, or the file of `hf auth login`); it is neither printed nor written.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.errors import ConfigError, HubError
from mcp_rl.learning.disk.checkpoint import MANIFEST
from mcp_rl.runs.export.staging import EXPORT
from mcp_rl.system.notices import notice
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal["model", "dataset"]
_OURS_TO_KEEP = {".gitattributes"}
"""Files that the hub puts into a new repository itself."""


@dataclass(frozen=True)
class HubPlace:
    """A repository to push to."""

    name: str
    """OWNER/NAME."""
    kind: Kind
    public: bool
    commit: str | None = None
    """Newest commit of the repository; None if there is no such repository yet."""
    files: frozenset[str] = frozenset()
    """Files of an earlier export in it."""

    @property
    def url(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"


def find_place(name: str, kind: Kind, *, public: bool, overwrite: bool) -> HubPlace:
    """Check that an export can be pushed to the repository OWNER/NAME. Changes nothing on the hub.

    Raises ConfigError for a name, a token or a repository that cannot be used, HubError if the hub fails.
    """
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo, get_token
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    owner, _, rest = name.partition("/")
    if not rest:
        raise ConfigError(f"--push-to-hub needs an owner and a name, such as me/{owner}, not {name!r} alone.")
    if get_token() is None:
        raise ConfigError(
            "--push-to-hub needs a token of the Hugging Face hub: run `hf auth login`, or set HF_TOKEN to one that may "
            "write."
        )
    api = HfApi()
    with _typed(f"Cannot push to {name}"):
        _check_owner(owner, api.whoami())
        try:
            found = api.repo_info(name, repo_type=kind)
        except RepositoryNotFoundError:
            return HubPlace(name, kind, public)
        except HFValidationError as error:
            raise ConfigError(
                f"The hub allows no name such as {name!r}: give --push-to-hub one such as {owner}/calculator."
            ) from error
        assert isinstance(found, ModelInfo | DatasetInfo)
        files = frozenset(file.rfilename for file in found.siblings or []) - _OURS_TO_KEEP
        place = HubPlace(name, kind, not found.private, found.sha, files)
        if not found.private and not public:
            raise ConfigError(f"{place.url} is public: add --public to push there, or choose another name.")
        if files and not (MANIFEST in files and _is_export(api, place)):
            raise ConfigError(f"{place.url} already holds something else; choose another name.")
        if files and not overwrite:
            raise ConfigError(f"{place.url} already holds an export: add --overwrite, or choose another name.")
        if found.private and public:
            notice(f"{place.url} is private and stays so; its settings on the hub make it public.")
    return place


def _check_owner(owner: str, who: dict[str, Any]) -> None:
    """Raise ConfigError unless the token's user, or an organisation of theirs, has this name."""
    owners = [str(who.get("name", "")), *(str(org.get("name", "")) for org in who.get("orgs") or [])]
    if owner.casefold() not in {known.casefold() for known in owners}:
        listed = shortened(" or ".join(filter(None, owners)))
        raise ConfigError(f"The token cannot push to {owner}/…: it belongs to {listed}.")
    if ((who.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        raise ConfigError(
            "The token may only read; make one that may write, at https://huggingface.co/settings/tokens."
        )


def _is_export(api: Any, place: HubPlace) -> bool:
    from pathlib import Path

    try:
        content = json.loads(
            Path(api.hf_hub_download(place.name, MANIFEST, repo_type=place.kind, revision=place.commit)).read_bytes()
        )
    except ValueError:
        return False
    return isinstance(content, dict) and EXPORT in content


def push(place: HubPlace, folder: Path, title: str) -> str:
    """Put the files of an export into the repository, in place of an earlier export's; return its address.

    Raises HubError or ConfigError where that fails: the repository is then unchanged, or new and empty.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    if not sys.stderr.isatty():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    api = HfApi()
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    with _typed(f"Cannot create {place.url}; the export is in {folder}"):
        if place.commit is None:
            api.create_repo(place.name, repo_type=place.kind, private=not place.public)
    if place.commit is None:
        notice(f"Created {place.url}, {'public' if place.public else 'private'}; uploading to it.")
    state = "is new and still empty" if place.commit is None else "is unchanged"
    with _typed(f"The push failed: {place.url} {state}, the export is in {folder}, and --overwrite pushes again"):
        api.create_commit(
            place.name,
            [
                *(CommitOperationAdd(name, path) for name, path in files.items()),
                *(CommitOperationDelete(name, is_folder=False) for name in sorted(place.files - files.keys())),
            ],
            commit_message=title,
            repo_type=place.kind,
            parent_commit=place.commit,
        )
    return place.url


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """Turn the errors of the hub's client into ours, each with what it means for the user."""
    import httpx
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ConfigError(f"{what}: HF_HUB_OFFLINE is set, which forbids it.") from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        said = f" ({_said(error.server_message)})" if error.server_message else ""
        if code == 401:
            raise ConfigError(f"{what}: the hub does not accept the token{said}; run `hf auth login`.") from error
        if code == 403:
            raise ConfigError(f"{what}: the token may not write there{said}.") from error
        if code == 409:
            raise ConfigError(f"{what}: the name is taken{said}.") from error
        raise HubError(f"{what}: the hub answered {code}{said}.") from error
    except (httpx.TransportError, httpx2.TransportError, ConnectionError, TimeoutError) as error:
        from huggingface_hub import constants

        why = _said(error) or type(error).__name__
        raise HubError(f"{what}: {constants.ENDPOINT} cannot be reached ({why}).") from error
    except (httpx.HTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise HubError(f"{what}: {_said(error) or type(error).__name__}.") from error


def _said(text: object) -> str:
    return shortened(re.sub(r"\s+", " ", without_secrets(str(text)))).rstrip(". ")
