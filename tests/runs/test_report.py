import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mcp_rl.runs.report import Headline, RunReport, TrainTotals, ValReport, print_report


def measure(success: float, low: float, high: float) -> dict[str, Any]:
    return {
        "success": success,
        "ci95": [low, high],
        "reward": success,
        "turns": 2.25,
        "sampled_tokens": 41.0,
        "pass_at": {"1": success, "2": 0.8, "4": 0.95},
    }


def report(run_dir: Path, details: dict[str, Any] | None = None) -> RunReport:
    return RunReport(
        run_dir=str(run_dir),
        server="calc[ulator]",
        base_model="mcp-rl/tiny",
        step=60,
        seconds=200.0,
        peak_rss_mb=900.0,
        val=ValReport(
            scenarios=120,
            before=Headline(success=0.4, ci95=(0.31, 0.49), reward=0.4),
            after=Headline(success=0.97, ci95=(0.92, 0.99), reward=0.97),
        ),
        train=TrainTotals(rollouts=7680, sampled_tokens=300000, trained_tokens=250000, faults=0),
        details=details or {},
    )


def printed(report: RunReport, width: int = 100, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=terminal)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_json_line_has_the_promised_keys_and_no_others(tmp_path: Path) -> None:
    line = report(tmp_path, {"before": {"greedy": measure(0.4, 0.3, 0.5)}}).json_line()
    assert "\n" not in line
    content = json.loads(line)
    top = {"run_dir", "server", "base_model", "step", "seconds", "peak_rss_mb", "val", "train"}
    assert set(content) == top | {"target_reached", "learned"}
    assert set(content["val"]) == {"scenarios", "before", "after"}
    assert set(content["val"]["after"]) == {"success", "ci95", "reward"}
    assert set(content["train"]) == {"rollouts", "sampled_tokens", "trained_tokens", "faults"}


def test_a_report_can_be_read_back(tmp_path: Path) -> None:
    whole = report(tmp_path, {"before": {"greedy": measure(0.4, 0.3, 0.5)}, "after": {}})
    assert RunReport.model_validate_json(whole.model_dump_json()) == whole


def test_a_run_that_ended_early_goes_on_without_a_target() -> None:
    ended = report(Path("runs/calc")).model_copy(update={"target_reached": 0.997})
    assert "the same command with target_success=none." in printed(ended, width=200)


@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_a_report_fits_the_terminal_with_all_numbers(width: int) -> None:
    before, after = (
        {"greedy": measure(n, n - 0.1, n + 0.1), "sampled": measure(n, n - 0.2, n + 0.2)} for n in (0.4, 0.7)
    )
    lines = printed(report(Path("runs/calc"), {"before": before, "after": after}), width, terminal=True).splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    for number in ("0.400", "[0.300, 0.500]", "0.700", "[0.500, 0.900]", "0.950", "--steps 120"):
        assert number in " ".join(line.strip() for line in lines)


def test_tables_show_before_and_after_and_by_tool(tmp_path: Path) -> None:
    before = {
        "greedy": measure(0.41, 0.32, 0.50),
        "sampled": measure(0.38, 0.33, 0.43),
        "by_tool": {"add": {"scenarios": 20, "success": 0.5}},
    }
    after = {
        "greedy": measure(0.97, 0.92, 0.99),
        "sampled": measure(0.94, 0.91, 0.96),
        "by_tool": {"add": {"scenarios": 20, "success": 1.0}, "d[i]vide": {"scenarios": 10, "success": 0.9}},
        "by_level": {"told": {"scenarios": 12, "success": 0.75}},
    }
    text = printed(report(tmp_path, {"before": before, "after": after}))
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "0.410 [0.320, 0.500]" in rows["greedy success"] and "0.970 [0.920, 0.990]" in rows["greedy success"]
    assert "0.940 [0.910, 0.960]" in rows["sampled success"]
    assert "0.950" in rows["sampled pass@4"]
    assert "0.750" in rows["told"] and "by level" in text
    assert "0.500" in rows["add"] and "1.000" in rows["add"] and "-" in rows["d[i]vide"]
    assert "calc[ulator]: 120 scenarios that were never trained on" in text


def test_without_details_the_headline_is_shown(tmp_path: Path) -> None:
    assert "0.970 [0.920, 0.990]" in printed(report(tmp_path))


def test_an_unmeasured_rate_is_a_dash(tmp_path: Path) -> None:
    unmeasured = report(tmp_path)
    unmeasured.val.before = Headline(success=None, ci95=None, reward=None)
    assert "-" in printed(unmeasured)


def test_the_checkpoint_is_named_if_it_exists(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "0060"
    assert str(checkpoint) not in printed(report(tmp_path))
    checkpoint.mkdir(parents=True)
    assert f"The trained model is in {checkpoint}" in printed(report(tmp_path))
    (checkpoint / "adapter_config.json").write_text("{}")
    text = printed(report(tmp_path))
    assert f"The trained adapter is in {checkpoint}" in text and "--steps 120" in text and "--fresh" in text


def test_the_forecast_is_compared_with_what_it_was(tmp_path: Path) -> None:
    text = printed(report(tmp_path, {"forecast": {"steps_per_hour": 2400.0, "steps_per_hour_was": 1200.0}}))
    assert "1,200 steps an hour; 2,400 were forecast, so it was 0.5 times as fast." in text
    assert "were forecast" not in printed(
        report(tmp_path, {"forecast": {"steps_per_hour": 5.0, "steps_per_hour_was": None}})
    )
