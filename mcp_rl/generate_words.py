"""What `mcp-rl generate` says about what it made, in lines for a terminal."""

from collections.abc import Iterator

from mcp_rl.generate import Generated
from mcp_rl.scenarios.author_report import AuthorReport

_MOST_LISTED = 12
_WIDTH = 70


def lines(generated: Generated, out: object) -> Iterator[str]:
    """One line for each thing worth knowing; the first says what is where."""
    counts = generated.summary()
    unverified = counts["scenarios"] - counts["verified"]
    solved = f"{counts['verified']} scenarios, each solved on the live server, are in {out}"
    yield f"{solved}, and {unverified} for a judge only." if unverified else f"{solved}."
    yield f"  calls: {_counted(counts['steps'])}; verifiers: {_counted(counts['verifiers'])}"
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
    if report.stopped:
        yield f"Nothing more was asked of it: {shown(report.stopped, 400)}"
    elif report.lost_batches:
        yield f"{report.lost_batches} of its questions had no usable reply."
    for fate, what in (
        ("dropped", "Proposed tasks that were dropped"),
        ("for a judge only", "Proposed tasks without a verifier, tagged ruler-only, for a judge only"),
        ("kept its wording", "Requests that kept their wording"),
    ):
        refused = [one for one in report.refused if one.fate == fate]
        if refused:
            yield f"{what}: {len(refused)}"
            for reason, count in report.reasons(fate):
                yield f"  {count} x {reason}"
        if fate != "kept its wording":
            for one in refused[:_MOST_LISTED]:
                yield f"    {shown(one.request)}  [{shown(one.reason)}]"
            if len(refused) > _MOST_LISTED:
                yield f"    … and {len(refused) - _MOST_LISTED} more; --json lists all of them."


def shown(text: str, width: int = _WIDTH) -> str:
    """A text that somebody else wrote, on one line, cut, and with nothing in it that a terminal would obey."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"


def _counted(counts: dict[object, int]) -> str:
    """ "40 x 1, 10 x 2" for numbers, "40 train, 10 val" for names."""
    parts = (f"{count} x {key}" if isinstance(key, int) else f"{count} {key}" for key, count in counts.items())
    return ", ".join(parts)
