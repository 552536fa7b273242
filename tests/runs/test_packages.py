"""A run knows the package that its server came from, and says so when it goes on with another."""

import json
import shutil
from pathlib import Path

import pytest

from mcp_rl.cli import main
from mcp_rl.runs.packages import kept_packages, package_changes
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.launchers import direct
from mcp_rl.toolserver.launchers.package import Package
from tests.toolserver.registries import NpmRegistry


@pytest.mark.skipif(shutil.which("npx") is None, reason="needs npx")
def test_a_run_says_that_its_server_is_another_version_and_does_not_go_on_with_other_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cache", "prefix"):
        monkeypatch.setenv(f"npm_config_{name}", str(tmp_path / name))
    seven = {"kind": "text", "expected": "7"}
    tasks = [{"task": f"Show me number {number}.", "verifier": seven} for number in range(9)]
    Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    settings = ["rollout.max_turn_tokens=4", "rollout.max_turns=2", "rollout.group_size=2", "rollout.groups_per_step=1"]
    settings += ["evaluation.samples=1", "evaluation.greedy=false", "evaluation.every=0", "train.epochs=1"]

    def train(package: str, steps: int, *more: str) -> tuple[int, str]:
        monkeypatch.setattr(direct, "_known", {})
        words = ["train", "--server", f"npx -y {package}", "--scenarios", "tasks.jsonl", "--name", "it"]
        status = main([*words, "--steps", str(steps), *more, *settings])
        printed = capsys.readouterr()
        return status, " ".join((printed.out + printed.err).split())

    with NpmRegistry() as registry:
        monkeypatch.setenv("npm_config_registry", registry.url)
        integrity = registry.add("tiny", "1.0.0")
        status, said = train("tiny", 1)
        assert status == 0, said
        about = json.loads(Path(".mcp_rl/default/models/it/model.json").read_text())
        package = about["packages"]["tiny"]
        assert (package["launcher"], package["name"], package["version"]) == ("npx", "tiny", "1.0.0")
        assert (package["integrity"], package["installed"]) == (integrity, {"tiny": "1.0.0"})

        registry.add("tiny", "2.0.0", tools=("show", "more"))
        status, said = train("tiny", 2)
        assert status == 2
        assert (
            "The server tiny is tiny 2.0.0 now and was tiny 1.0.0 when the run began; name tiny@1.0.0 in its command"
            in said
        )
        assert "To go on with the server's new tools, add --allow-schema-change" in said
        status, said = train("tiny@1.0.0", 2)
        assert status == 0 and "when the run began" not in said


def test_a_run_names_the_dependencies_that_are_others_now(monkeypatch: pytest.MonkeyPatch) -> None:
    params = StdioServer(command="npx", args=("-y", "tiny"))

    def installed(hash: str, **versions: str) -> None:
        package = Package("npx", "tiny", "1", "sha512-x", hash, {"tiny": "1", **versions})
        known = {direct._key(params): direct._Known(None, package)}
        monkeypatch.setattr(direct, "_known", known)

    installed("a", left="1", gone="1")
    about = {"packages": json.loads(json.dumps(kept_packages(params, "it")))}
    assert package_changes(about, params, "it") == []
    installed("b", left="2", new="1")
    assert package_changes(about, params, "it") == [
        "The server it is tiny 1 as when the run began, with other versions of what it depends on: gone 1 → none, left "
        "1 → 2, new none → 1."
    ]
