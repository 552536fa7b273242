"""What came of an author's work: how much of it holds, and which of it does not and why."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from mcp_rl.boundary import without_secrets
from mcp_rl.language_model import Spent


@dataclass(frozen=True)
class Refused:
    """Something that the author wrote and that is not used as it stands."""

    request: str
    fate: str
    """"kept its wording", "dropped" or "for a judge only"."""
    reason: str

    @property
    def kind(self) -> str:
        """The reason without what is special to this one."""
        return self.reason.partition(":")[0]


@dataclass
class AuthorReport:
    """Counts, and the refused one by one."""

    model: str
    rewritten: int = 0
    """Requests of verified scenarios that have a new wording."""
    proposed: int = 0
    """Tasks that the author proposed."""
    verified: int = 0
    """Of these, tasks whose solution was executed, and read from the request alone once more."""
    unverified: int = 0
    """Of these, tasks that are kept without a verifier."""
    refused: list[Refused] = field(default_factory=list)
    lost_batches: int = 0
    """Questions to which no usable reply came."""
    stopped: list[str] = field(default_factory=list)
    """Why no more proposals, or no more words, were asked for, where some were left to ask for."""
    spent: Spent = field(default_factory=Spent)

    def refuse(self, request: str, fate: str, reason: str) -> None:
        """Keep what was refused; a key that a model was told, and writes, is not kept."""
        self.refused.append(Refused(without_secrets(request), fate, without_secrets(reason)))

    def reasons(self, fate: str) -> list[tuple[str, int]]:
        """Reasons with their numbers, the most frequent first."""
        return Counter(refused.kind for refused in self.refused if refused.fate == fate).most_common()

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)
