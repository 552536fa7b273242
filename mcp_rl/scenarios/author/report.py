"""Report on an author's work: counts, and each refusal with its reason."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from mcp_rl.inference.apis.language_model import Spent
from mcp_rl.system.redaction import without_secrets


@dataclass(frozen=True)
class RejectedProposal:
    """A text of the author that is not used, or only for a judge."""

    request: str
    fate: str
    """Consequence: "kept its wording", "dropped" or "for a judge only"."""
    reason: str

    @property
    def kind(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0]


@dataclass
class AuthorReport:
    """Counts of an author's work, and every refusal."""

    model: str
    rewritten: int = 0
    """Number of verified scenarios with a new wording."""
    proposed: int = 0
    """Number of tasks that the author proposed."""
    verified: int = 0
    """Number of proposed tasks whose solution was executed, and read back from the request alone."""
    unverified: int = 0
    """Number of proposed tasks that are kept without a verifier."""
    refused: list[RejectedProposal] = field(default_factory=list)
    lost_batches: int = 0
    """Number of questions without a usable reply."""
    stopped: list[str] = field(default_factory=list)
    """Reasons for ending proposals or rewording early."""
    spent: Spent = field(default_factory=Spent)

    def refuse(self, request: str, fate: str, reason: str) -> None:
        """Record a refusal, with any secret in its texts removed."""
        self.refused.append(RejectedProposal(without_secrets(request), fate, without_secrets(reason)))

    def reasons(self, fate: str) -> list[tuple[str, int]]:
        """Return the reasons of a fate with their counts, most frequent first."""
        return Counter(refused.kind for refused in self.refused if refused.fate == fate).most_common()

    def summary(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)
