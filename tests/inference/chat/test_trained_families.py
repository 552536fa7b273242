"""A small random model of each family's architecture trains for two steps, or one sentence says at once why not."""

import json
from pathlib import Path

import pytest

from mcp_rl.errors import ConfigError
from tests.inference.chat.families import FAMILIES, Family, templates, write_base
from tests.runs.finished.small_run import make_ground, train

pytestmark = pytest.mark.skipif(templates() is None, reason="the templates come with TRL: pip install --no-deps trl")
SHORT = ["--steps=2", "rollout.groups_per_step=1", "rollout.group_size=8", "rollout.max_thought_tokens=6"]
SHORT += ["evaluation.every=0", "evaluation.samples_between=0", "train.minibatches=1"]

DISTINCT = list({(family.model, family.dialect): family for family in reversed(FAMILIES)}.values())


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ground(tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("family", DISTINCT, ids=lambda family: family.template)
def test_a_family_trains_for_two_steps_or_is_refused_before_anything_starts(family: Family, ground: Path) -> None:
    base, told = write_base(family, ground / family.template), ["chat.format=hermes"] * family.told
    words = ["--base-model", str(base), *SHORT, *told]
    if family.untrained:
        with pytest.raises(ConfigError, match=f"{family.untrained}.*samples attention only.*--engine vllm"):
            train(ground, family.template, *words)
        assert not (ground / "out" / "default" / "models" / family.template).exists()
        return
    run = train(ground, family.template, *words)
    steps = [line for line in map(json.loads, (run / "history.jsonl").open()) if line["split"] == "train"]
    assert [line["step"] for line in steps] == [1, 2] and any(line["grad_norm"] > 0 for line in steps)
    ratios = [line["ratio_mean"] for line in steps if "ratio_mean" in line]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-4), "sampler and learner compute the same"
    about = json.loads((run / "model.json").read_text())
    assert about["loaded"]["adapted"]["modules"] > 0
    pace = json.loads((run / "report.json").read_text())["details"]["forecast"]
    assert pace["steps_per_hour_was"] > 0 and pace["steps_per_hour"] > 0
