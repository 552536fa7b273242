"""What `mcp-rl generate` says about what it made, in lines for a terminal."""

from collections.abc import Iterator

from mcp_rl.generate import Generated
from mcp_rl.scenarios.author_report import AuthorReport, Refused

_EXAMPLES = 3
"""Refused requests that are shown for each reason."""
_WIDTH = 70


def lines(generated: Generated, out: object) -> Iterator[str]:
    """One line for each thing worth knowing; the first says what is where."""
    counts = generated.summary()
    unverified = counts["scenarios"] - counts["verified"]
    kinds = [
        (counts["solved"], "solved on the live server"),
        (counts["unsolvable"], "that cannot be done"),
        (counts["without_tools"], "that need no tool"),
        (unverified, "for a judge only"),
    ]
    spread = ", ".join(f"{number} {kind}" for number, kind in kinds if number)
    yield f"{counts['scenarios']} scenarios are in {out}: {spread}."
    calls = ", ".join(f"{number} with {steps}" for steps, number in counts["steps"].items())
    yield f"  calls: {calls}; verifiers: {_counted(counts['verifiers'])}"
    if set(counts["splits"]) != {"none"}:
        yield f"  splits: {_counted(counts['splits'])}"
    if generated.author is not None:
        yield from _author(generated.author)


def _author(report: AuthorReport) -> Iterator[str]:
    spent = report.spent
    price = f", ${spent.cost_usd:.4f}" if spent.cost_usd else ""
    yield (
        f"The author {report.model} gave {report.rewritten} requests new words and proposed {report.proposed} tasks, "
        f"of which {report.verified} hold ({spent.calls} questions, {spent.prompt_tokens} + {spent.completion_tokens} "
        f"tokens{price})."
    )
    if report.lost_batches:
        yield f"{report.lost_batches} of its questions had no usable reply."
    for reason in report.stopped:
        yield f"It was not asked for all that was wanted: {shown(reason, 400)}"
    for fate, what in (
        ("dropped", "Proposed tasks that were dropped"),
        ("for a judge only", "Proposed tasks without a verifier, tagged ruler-only, for a judge only"),
        ("kept its wording", "Requests that kept their wording"),
    ):
        refused = [one for one in report.refused if one.fate == fate]
        if refused:
            yield f"{what}: {len(refused)}"
            for reason, count in report.reasons(fate):
                yield from _examples(reason, count, [one for one in refused if one.kind == reason])


def _examples(reason: str, count: int, refused: list[Refused]) -> Iterator[str]:
    yield f"  {count} x {reason}"
    for one in refused[:_EXAMPLES]:
        detail = one.reason.removeprefix(reason).removeprefix(": ")
        yield f"      {shown(one.request)}{f'  [{shown(detail)}]' if detail else ''}"
    if count > _EXAMPLES:
        yield f"      … and {count - _EXAMPLES} more; --json lists them all."


def shown(text: str, width: int = _WIDTH) -> str:
    """A text that somebody else wrote, on one line, cut, and with nothing in it that a terminal would obey."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
