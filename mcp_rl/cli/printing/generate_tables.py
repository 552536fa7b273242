"""The summary that `mcp-rl generate` prints."""

from collections.abc import Iterator

from mcp_rl.config import LEVELS
from mcp_rl.scenarios.author.report import AuthorReport, RejectedProposal
from mcp_rl.scenarios.generate import Generated

_EXAMPLES = 3
"""Rejected requests shown for each reason."""
_WIDTH = 70
_MOST_REASONS, _MOST_NAMES = 8, 15
"""Tools without a task whose reasons are shown, and tools whose tasks are counted."""


def lines(generated: Generated, out: object) -> Iterator[str]:
    """Yield the lines of the summary, the number of scenarios and their file first."""
    counts = generated.summary()
    unverified = counts["scenarios"] - counts["verified"]
    kinds = [
        (counts["solved"], "solved on the live server"),
        (counts["unsolvable"], "that cannot be solved"),
        (counts["without_tools"], "that need no tool"),
        (unverified, "for a judge only"),
    ]
    spread = ", ".join(f"{number} {kind}" for number, kind in kinds if number)
    yield f"{counts['scenarios']} scenarios are in {out}: {spread}."
    levels = ", ".join(f"{number} {level}" for level, number in sorted(counts["levels"].items(), key=_by_level))
    hint = " (for the built-in model; --levels mixed suits a chat model)" if generated.levels == "spelled" else ""
    yield f"  levels: {levels}{hint}"
    calls = ", ".join(f"{number} with {steps}" for steps, number in counts["steps"].items())
    yield f"  calls: {calls}; verifiers: {_counted(counts['verifiers'])}"
    if set(counts["splits"]) != {"none"}:
        aside = f"; {generated.set_aside} that would tie two of them are left out" if generated.set_aside else ""
        yield f"  splits: {_counted(counts['splits'])}{aside}"
    if counts["tools"]:
        yield f"  tasks of each tool: {_counted_by_name(counts['tools'])}"
    if len(generated.scenarios) < generated.asked:
        yield f"  {generated.asked} were asked for; the server has no more different calls to offer."
    yield from _without_task(generated)
    if generated.author is not None:
        yield from _author(generated.author)


def _without_task(generated: Generated) -> Iterator[str]:
    """Yield why tools have no task, and what would help."""
    unused = generated.unused_tools
    if not unused:
        return
    yield f"  No task needs {len(unused)} of the tools (docs/generate.md says what lets a tool in):"
    for reason in generated.reasons[:_MOST_REASONS]:
        yield f"    {reason}"
    if len(unused) > _MOST_REASONS:
        yield f"    … and {', '.join(unused[_MOST_REASONS:])}; --json lists all reasons."


def _counted_by_name(counts: dict[str, int]) -> str:
    """Return the commonest names with their counts, and how many others there are."""
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown_names = ", ".join(f"{name} {number}" for name, number in ranked[:_MOST_NAMES])
    return shown_names + (f" and {len(ranked) - _MOST_NAMES} others" if len(ranked) > _MOST_NAMES else "")


def _by_level(counted: tuple[str, int]) -> int:
    return LEVELS.index(counted[0])


def _author(report: AuthorReport) -> Iterator[str]:
    spent = report.spent
    price = f", ${spent.cost_usd:.4f}" if spent.cost_usd else ""
    yield (
        f"The author {report.model} reworded {report.rewritten} requests and proposed {report.proposed} tasks, "
        f"of which {report.verified} hold ({spent.calls} questions, {spent.prompt_tokens} + {spent.completion_tokens} "
        f"tokens{price})."
    )
    if report.lost_batches:
        yield f"{report.lost_batches} of its questions got no usable reply."
    for reason in report.stopped:
        yield f"It could not do all that was asked: {shown(reason, 400)}"
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


def _examples(reason: str, count: int, refused: list[RejectedProposal]) -> Iterator[str]:
    yield f"  {count} x {reason}"
    for one in refused[:_EXAMPLES]:
        detail = one.reason.removeprefix(reason).removeprefix(": ")
        yield f"      {shown(one.request)}{f'  [{shown(detail)}]' if detail else ''}"
    if count > _EXAMPLES:
        yield f"      … and {count - _EXAMPLES} more; --json lists them all."


def shown(text: str, width: int = _WIDTH) -> str:
    """Return untrusted text on one line, shortened and without control characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
