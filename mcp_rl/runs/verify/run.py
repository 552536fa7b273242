"""Verify a run: collect its evidence, check each claim, and sign if asked."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError, McpRlError, RunDirectoryError
from mcp_rl.run_directory import RunDirectory, lock_run
from mcp_rl.runs.settings import Origin
from mcp_rl.runs.verify.again import attempt
from mcp_rl.runs.verify.claims import CHECKS, Check, Claim, RecordedRun, proven, refuted, unproven
from mcp_rl.runs.verify.signature import SIGNATURE, public_key, sign, signer
from mcp_rl.system.seals import check_sealed, read_seal, unsealed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp_rl.plugins.manager import Plugins

LIMITS = (
    "Digests show damage and edits, not who made a run: whoever can write to this folder can make it anew, digests "
    "included. Only episodes that were played again here, and a signature by a key that you trust, are beyond them."
)
"""The sentence on what a verification cannot show."""


@dataclass(frozen=True)
class VerifyRequest:
    """A run to verify, and the options of the verification."""

    folder: Path
    episodes: int = 4
    """Held-out episodes of each evaluation to play again."""
    servers: Sequence[str] = ()
    sign: Path | None = None
    check: Path | None = None


@dataclass(frozen=True)
class Verification:
    """The findings about a run."""

    folder: str
    subject: str
    """The run's claim in a sentence."""
    claims: list[Claim] = field(default_factory=list)
    seal: str | None = None
    """Digest of everything that is sealed."""

    @property
    def contradicted(self) -> bool:
        return any(claim.standing == "contradicted" for claim in self.claims)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "contradicted": self.contradicted, "limits": LIMITS}


async def verify_run(request: VerifyRequest, plugins: Plugins, say: Callable[[str], None]) -> Verification:
    """Check every claim of a run. Raises UserError for a folder that holds no claim, and for a key that is no key."""
    folder = request.folder
    if request.check is not None:
        public_key(request.check)
    run = RunDirectory(folder)
    if read_seal(folder) is None:
        raise RunDirectoryError(unsealed(folder))
    about = run.read_json("model.json")
    if about is None or "identity" not in about:
        return _signed(request, Verification(str(folder), "", [_whole(folder)]))
    origin = Origin.of(folder)
    config = origin.config({"unsloth.trust_remote_code": False})
    evidence = RecordedRun(folder, config, plugins, origin)
    claims: list[Claim] = []
    for name, check in CHECKS.items():
        if claims and claims[0].standing == "contradicted":
            claims.append(unproven(name, "Not examined, since files have changed."))
        else:
            claims.append(await _examined(name, check, evidence))
    if not any(claim.standing == "contradicted" for claim in claims):
        claims.append(await attempt(evidence, request.servers, request.episodes, say))
    return _signed(request, Verification(str(folder), _subject(evidence), claims))


def _whole(folder: Path) -> Claim:
    """Check a folder that holds no training run: an evaluation, a fine-tuning, a model of the Python API."""
    try:
        sealed = check_sealed(folder)
    except McpRlError as error:
        return refuted("files", str(error))
    assert sealed is not None
    return proven("files", f"{len(sealed.files)} files are as they were written.")


async def _examined(name: str, check: Check, evidence: RecordedRun) -> Claim:
    """Return what a check finds; a file that cannot be read contradicts the claim."""
    try:
        found = check(evidence)
        return await found if inspect.isawaitable(found) else found
    except (McpRlError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = str(error) if isinstance(error, McpRlError) else f"The files cannot be understood ({error!r})."
        return refuted(name, said)


def _signed(request: VerifyRequest, found: Verification) -> Verification:
    """Sign the run if asked, then say who has signed it."""
    folder = request.folder
    if request.sign is not None:
        if found.contradicted:
            raise ConfigError(f"{folder} was not signed, since a claim is contradicted: {_worst(found).said}")
        with lock_run(folder):
            RunDirectory(folder).settle()
            seal = read_seal(folder)
            assert seal is not None
            sign(folder, seal, request.sign)
    try:
        seal = read_seal(folder)
        by = signer(folder, seal) if seal else None
        claim = _by(by, request.check)
    except McpRlError as error:
        seal, claim = None, refuted("signature", str(error))
    return Verification(found.folder, found.subject, [*found.claims, claim], seal.digest if seal else None)


def _by(signed: str | None, check: Path | None) -> Claim:
    if signed is None and check is None:
        return unproven("signature", "Nobody has signed this run; --sign KEY does.")
    if signed is None:
        return refuted("signature", f"Nobody has signed this run: there is no {SIGNATURE}.")
    if check is None:
        return unproven("signature", f"Signed by {signed}; --check KEY.pub compares it with a key you trust.")
    if public_key(check) != signed:
        return refuted("signature", f"Signed by {signed}, not by {check}.")
    return proven("signature", f"Signed by {check}, in this very state.")


def _worst(found: Verification) -> Claim:
    return next(claim for claim in found.claims if claim.standing == "contradicted")


def _subject(evidence: RecordedRun) -> str:
    """Return what the run claims, in a sentence."""
    try:
        identity, state = evidence.origin.identity, evidence.state
        sides = [side or {} for side in (state.before, state.after)]
        rates = [(side.get("greedy") or side.get("sampled") or {}).get("success") for side in sides]
        moved = "" if None in rates else f", success {rates[0]:.3f} before and {rates[1]:.3f} after"
        held = f" on {sides[1].get('scenarios') or sides[0].get('scenarios')} held-out tasks" if moved else ""
        return f"{identity.base_model} on {identity.server}, {state.step} steps{moved}{held}."
    except (McpRlError, ValueError, KeyError, TypeError, AttributeError):
        return "what it claims cannot be read."
