"""The tables of docs/doctor.md match the plans."""

import sys
from collections.abc import Iterator
from pathlib import Path

from mcp_rl.backends.plan.outcome import RunPlan
from tests.backends.plan.machines import SHAPES, machine, planned

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"
GPUS = (8, 12, 16, 24, 40, 48, 80, 141)


def table(method: str) -> str:
    """Return a table with a row for each model and a column for each size of GPU."""
    return "\n".join(_rows(method))


def _rows(method: str) -> Iterator[str]:
    yield "| GPU | " + " | ".join(f"{gib} GiB" for gib in GPUS) + " |"
    yield "|---" * (len(GPUS) + 1) + "|"
    for size in SHAPES:
        plans = [planned(machine(gib), size, train={"method": method}) for gib in GPUS]
        if any(plan.fits for plan in plans):
            yield f"| {size} | " + " | ".join(map(_cell, plans)) + " |"


def _cell(plan: RunPlan) -> str:
    if not plan.fits:
        return "-"
    bits = "4" if plan.quantisation == "4-bit" else "16"
    kept = "" if plan.activation_checkpointing else "*"
    return f"{bits}, {plan.microbatch_tokens / 1024:.3g}k{kept}, {plan.context / 1024:.3g}k"


def test_the_page_shows_current_plans() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for method in ("lora", "full"):
        assert table(method) in page, f"python -m tests.backends.plan.test_table prints the tables of {PAGE.name}"


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(map(table, ("lora", "full"))) + "\n")
