"""The role that each setting plays in a run, as its field says."""

import pytest

from mcp_rl.config import config_keys, role_of
from mcp_rl.config.section import UNMARKED

KEYS = [key for key, _ in config_keys()]


def keys(part: str) -> set[str]:
    """Return the settings that have this part in their role."""
    return {key for key in KEYS if getattr(role_of(key), part)}


def test_every_setting_is_classified() -> None:
    assert [key for key in KEYS if None in vars(role_of(key)).values()] == []


@pytest.mark.parametrize(
    ("part", "some", "others"),
    [
        ("identity", {"backend", "train.loss", "judge.model", "unsloth.revision"}, {"seed", "init", "engine.url"}),
        ("carried", {"backend", "rollout.deadline", "engine.args"}, {"steps", "engine.environment", "judge.base_url"}),
        ("fixed", {"server", "scenarios.val", "train.lora.rank"}, {"steps", "train.loss", "evaluation.every"}),
        ("measured", {"reward.weights", "judge.rubric", "rollout.max_turns"}, {"judge.cache", "rollout.probes"}),
        ("replay", {"seed", "init", "train.loss"}, {"rollout.max_turns", "base_model"}),
        ("same_policy", {"steps", "train.prefix_sharing"}, {"train.loss", "train.forward"}),
        ("sft", {"train.learning_rate", "train.lora.rank"}, {"train.loss", "train.forward", "steps"}),
    ],
)
def test_named_examples(part: str, some: set[str], others: set[str]) -> None:
    assert some <= keys(part) and others.isdisjoint(keys(part))


def test_nothing_carried_may_hold_a_secret() -> None:
    assert keys("carried").isdisjoint({"server", "engine.url", "engine.environment", "judge.base_url", "tools.replay"})


def test_sections_entries_of_tables_and_unknown_keys() -> None:
    assert not role_of("engine").identity and not role_of("tools.deadlines.add").identity
    assert role_of("tools").fixed and role_of("tools.unknown").fixed
    assert role_of("replay.of") == UNMARKED
