"""Which library loads the base is measured, kept for the machine, and used by the next run."""

import json
from pathlib import Path

import pytest

from mcp_rl.backends.plan import fastest_loader as module
from mcp_rl.backends.plan.choices import resolve, timed_loader
from mcp_rl.backends.plan.detect import detect
from mcp_rl.backends.plan.fastest_loader import KEPT, LOADERS, fastest_loader, measured_loader
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.wanted import wanted
from mcp_rl.backends.plan.workload import VOCABULARY, Way, Workload, workload
from mcp_rl.config import TINY, RunConfig
from mcp_rl.system.measured import remember
from mcp_rl.tiny import weights_path
from tests.backends.plan.machines import SHAPES, machine, qwen

WORK = Workload(base_model=TINY, dtype="float32", shared=96, own=8, rows=6, microbatch_tokens=1024)
WAYS = {
    "rows": Way(loader="transformers", forward="rows"),
    "tree": Way(loader="transformers", forward="tree"),
    "unsloth": Way(loader="unsloth"),
}


def test_the_model_that_is_timed_has_a_place_for_every_token() -> None:
    assert json.loads((weights_path() / "config.json").read_text())["vocab_size"] <= VOCABULARY


def test_two_ways_are_timed_once_and_what_fails_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = detect()
    assert measured_loader(WORK, here, WAYS) is None
    monkeypatch.setenv("IMPORT_UNSLOTH", "0")  # so that this way fails at once, as a missing GPU would have it
    found = fastest_loader(WORK, here, WAYS)
    assert found is not None
    assert found.seconds.keys() == {"rows", "tree"} and min(found.seconds.values()) > 0
    assert found.name == min(found.seconds, key=lambda name: found.seconds[name])
    assert "off by" not in found.reason and "unsloth fails" in found.reason

    monkeypatch.setattr(module, "_tried", None)  # it is not measured again
    assert fastest_loader(WORK, here, WAYS) == measured_loader(WORK, here, WAYS) == found
    longer = WORK.model_copy(update={"own": 16})
    assert measured_loader(longer, here, WAYS) is None, "other lengths are measured anew"
    (file,) = (tmp_path / "mcp_rl" / "measured").iterdir()
    file.write_text("[]")
    assert measured_loader(WORK, here, WAYS) is None


@pytest.mark.parametrize("fastest", ["unsloth", "transformers"])
def test_a_run_takes_the_loader_that_was_measured(
    fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there = machine(24)

    def config(**settings: object) -> RunConfig:
        given = {"server": "any", "base_model": SHAPES["0.5B"], "output_dir": tmp_path, **settings}
        return RunConfig.model_validate(given)

    asked = wanted(config())
    made = plan(there, qwen("0.5B"), asked)
    assert made.loader == "transformers" and made.quantisation == "none", "the tree, until it was measured"
    assert timed_loader(config(), there, made, asked, measure=False) is None
    work = workload(made.model, made, asked, sampled=config().rollout.max_tokens, rows=config().rollout.group_size)
    found = {"name": fastest, "reason": f"{fastest} is taken: it takes 1.000 s.", "seconds": {fastest: 1.0}}
    remember(KEPT, module._key(work, there, LOADERS), found)
    choice = timed_loader(config(), there, made, asked, measure=False)
    assert choice is not None and choice.name == fastest
    for forced in ({"unsloth": {"use": fastest != "unsloth"}}, {"train": {"forward": "tree"}}):
        own = config(**forced)
        assert timed_loader(own, there, made, wanted(own), measure=False) is None, "what is set is not measured"
    monkeypatch.setenv("IMPORT_UNSLOTH", "0")
    assert timed_loader(config(), there, made, asked, measure=False) is None
    monkeypatch.delenv("IMPORT_UNSLOTH")

    from mcp_rl.backends.hosts import LocalSettings

    settings = LocalSettings(
        base_model=SHAPES["0.5B"], run=tmp_path / "run", title="a/b", rollout=config().rollout, train=config().train
    )
    resolved = resolve(settings, machine=there)
    assert resolved.settings.unsloth.use is (fastest == "unsloth")
    assert resolved.plan is not None and resolved.plan.loader == fastest
    assert f"Of the loaders, {fastest} is taken" in resolved.said[1]
