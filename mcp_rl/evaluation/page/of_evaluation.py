"""Read an evaluation's folder as findings."""

from functools import cache, partial
from pathlib import Path

from pydantic import ValidationError

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.page.findings import EpisodeSource, Findings
from mcp_rl.evaluation.page.tokens import Spelling, find_spelling
from mcp_rl.evaluation.result import EvaluationReport, ModelReport
from mcp_rl.evaluation.tables import notes
from mcp_rl.run_directory import read_groups
from mcp_rl.system.seals import check_sealed, unsealed


def evaluation_findings(folder: Path) -> Findings:
    """Read an evaluation. Raises ConfigError if report.json is not an evaluation's report, RunDirectoryError for a file
    that is not as the evaluation wrote it."""
    unchecked = [] if check_sealed(folder) else [unsealed(folder)]
    try:
        report = EvaluationReport.model_validate_json((folder / "report.json").read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise ConfigError(f"{folder / 'report.json'} is not the report of an evaluation ({reason}).") from error
    names = ", ".join(model.model for model in report.models)
    return Findings(
        folder=folder,
        title=f"{report.server}: {names}",
        subtitle=f"Evaluation {folder.name}",
        measured=report,
        sources=[_source(folder, model) for model in report.models],
        facts=[
            ("server", report.server),
            ("tool schemas", report.schema_hash),
            ("scenarios", f"{report.scenarios}, {report.scenarios_from}"),
            ("sampled episodes of each", str(report.samples)),
            ("temperature", f"{report.temperature:g}"),
            ("seed", str(report.seed)),
            *((name, str(value)) for name, value in report.limits.items()),
            *((f"{model.model}: base model", model.base_model) for model in report.models if model.base_model),
            ("seconds", f"{report.seconds:,.0f}"),
        ],
        notes=[*unchecked, *notes(report)],
    )


def _source(folder: Path, model: ModelReport) -> EpisodeSource:
    result = model.result

    @cache
    def spelling() -> Spelling | None:
        return find_spelling(model.base_model, [Path(model.checkpoint)] if model.checkpoint else [])

    return EpisodeSource(
        label=model.model,
        split="evaluation",
        step=result.step if model.kind in ("base", "checkpoint") else None,
        groups=partial(read_groups, folder / model.episodes),
        episodes=sum(measure.rollouts for measure in (result.greedy, result.sampled) if measure),
        spelling=spelling,
        greedy=result.greedy is not None,
    )
