"""Sign a run's seal with the user's own Ed25519 key, and check such a signature.

The signature covers `seal.json`, which has a digest of every file of the run. Keys are those that
`ssh-keygen -t ed25519` makes, or PEM files.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from mcp_rl.system.seals import Seal

SIGNATURE = "seal.sig"
_FORMAT = 1


def sign(folder: Path, seal: Seal, key_file: Path) -> str:
    """Write the signature of a seal beside it; return the public key, as OpenSSH writes it.

    Raises ConfigError for a file that holds no Ed25519 key without a passphrase.
    """
    key = _private_key(key_file)
    public = _openssh(key.public_key())
    content = {
        "format": _FORMAT,
        "algorithm": "ed25519",
        "seal": seal.digest,
        "public_key": public,
        "signature": base64.b64encode(key.sign(_message(seal))).decode(),
    }
    path = folder / SIGNATURE
    try:
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error
    return public


def signer(folder: Path, seal: Seal) -> str | None:
    """Return the public key that has signed this very seal; None without a signature.

    Raises ConfigError for a signature that is damaged, or of a seal that the run has no more.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    path = folder / SIGNATURE
    try:
        content = json.loads(path.read_bytes())
        known, signature = content["public_key"], base64.b64decode(content["signature"], validate=True)
        sealed, format = content["seal"], content["format"]
        key = load_ssh_public_key(known.encode())
    except FileNotFoundError:
        return None
    except Exception as error:  # several kinds, from base64, JSON and the key's format
        raise ConfigError(f"{path} is not a signature that `mcp-rl verify --sign` wrote.") from error
    if format != _FORMAT or not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is not a signature of this version.")
    if sealed != seal.digest:
        raise ConfigError(f"{path} signs another state of this run: the run has gone on, or was changed, since then.")
    try:
        key.verify(signature, _message(seal))
    except InvalidSignature:
        raise ConfigError(f"{path} is not a valid signature of this run.") from None
    return _openssh(key)


def public_key(file: Path) -> str:
    """Read a public key, of OpenSSH or PEM; return it as OpenSSH writes it. Raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    content = _read(file)
    try:
        key = load_pem_public_key(content) if content.startswith(b"-----BEGIN PUBLIC") else load_ssh_public_key(content)
    except Exception as error:
        raise ConfigError(
            f"{file} holds no public key: name the file that ends in .pub, of `ssh-keygen -t ed25519`."
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file} holds a key of another kind: make one with `ssh-keygen -t ed25519`.")
    return _openssh(key)


def _private_key(file: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = _read(file)
    load = load_ssh_private_key if content.startswith(b"-----BEGIN OPENSSH") else load_pem_private_key
    try:
        key = load(content, password=None)
    except Exception as error:
        raise ConfigError(
            f"{file} holds no private key that can be used without a passphrase: make one with "
            f"`ssh-keygen -t ed25519 -N '' -f {file.name}-runs`."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds a key of another kind: make one with `ssh-keygen -t ed25519`.")
    return key


def _read(file: Path) -> bytes:
    try:
        return file.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the key {file}: {error.strerror or error}.") from error


def _message(seal: Seal) -> bytes:
    return f"mcp_rl run {_FORMAT} {seal.digest}".encode()


def _openssh(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
