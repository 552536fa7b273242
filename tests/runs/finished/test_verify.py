"""Runs notice damage and edits, and `mcp-rl verify` says what of their claim is proven.

`python -m benchmarks.tampering RUN` does a thousand flips and a hundred edits.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import STEPS, train

from benchmarks.tampering import EDITS, count_flips, noticed, reseal
from mcp_rl.cli import main
from mcp_rl.errors import RunDirectoryError
from mcp_rl.evaluation.evaluate import summarize
from mcp_rl.evaluation.page import write_report
from mcp_rl.learning.disk.checkpoint import find_damage
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.run_directory import RunDirectory, open_run
from mcp_rl.runs.steps.metrics import evaluation_metrics, rollout_metrics
from mcp_rl.system.chain import follow_chain, relinked
from mcp_rl.system.seals import SEAL, Seal, check_sealed, read_seal
from mcp_rl.trajectory import TrajectoryGroup

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def plugins(ground: Path) -> Plugins:
    return load_plugins([ground / "checksum.py"])


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run with its digests and its page. Tests only read it."""
    target = tmp_path_factory.mktemp("whole") / "first"
    shutil.copytree(run, target)
    write_report(target)
    return target


@pytest.fixture
def sealed(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run in its own project, for tests that change it."""
    target = tmp_path / "out" / "default" / "models" / "first"
    shutil.copytree(whole, target)
    return target


def verify(run: Path, *more: str) -> int:
    return main(["verify", str(run), *more])


def standings(said: str) -> dict[str, str]:
    told = json.loads(said.splitlines()[-1])
    return {claim["name"]: claim["standing"] for claim in told["claims"]}


def test_everything_of_a_true_run_is_proven_but_its_signature(run: Path, ground: Path, capsys: Captured) -> None:
    assert verify(run, "--plugin", str(ground / "checksum.py"), "--episodes", "2", "--json") == 0
    said = capsys.readouterr()
    found = standings(said.out)
    assert found.pop("signature") == "not proven"
    assert set(found.values()) == {"proven"} and "played again" in found
    assert "4 of 4 episodes before training and of step 6 came out token for token" in " ".join(said.err.split())
    assert "whoever can write to this folder can make it anew" in " ".join(said.err.split())


def test_no_flipped_byte_goes_unnoticed(sealed: Path, plugins: Plugins) -> None:
    seed = random.randrange(2**32)
    assert noticed(sealed, plugins) is None
    assert count_flips(sealed, 40, plugins, random.Random(seed))["missed"] == [], f"seed {seed}"
    assert noticed(sealed, plugins) is None


@pytest.mark.parametrize("name", EDITS)
def test_no_deliberate_edit_goes_unnoticed(sealed: Path, plugins: Plugins, name: str) -> None:
    EDITS[name](sealed, random.Random(name))
    assert noticed(sealed, plugins) is not None


@pytest.mark.parametrize(
    ("edit", "named", "command"),
    [
        ("every expected answer of the held-out tasks is 99999", "val.jsonl has changed", ["evaluate", "--model"]),
        ("the state's evaluation is changed", "state.json has changed", ["report"]),
        ("every success in the history is 1", "history.jsonl, line 1", ["history"]),
        ("two lines of the history are swapped", "history.jsonl, line", ["history"]),
        ("the last line of the history is removed", "and what follows it are missing", ["history"]),
        ("verdicts of episodes are turned round", "jsonl (written with line", ["export-trajectories", "--out", "o"]),
        ("a setting of the run is changed", "model.json has changed", ["fork", "--from-step", "2"]),
        ("a token is changed", "jsonl (written with line", ["replay"]),
        ("the recorded command is changed", "model.json has changed", ["chat"]),
        ("a tool's description is changed", "tools.json has changed", ["serve"]),
        ("the table of the report is changed", "report.json has changed", ["export", "--out", "o"]),
        ("a token is changed", "jsonl (written with line", ["sft", "--name", "s", "--from-run"]),
    ],
)  # fmt: skip
def test_commands_refuse_a_run_that_has_changed(
    sealed: Path, edit: str, named: str, command: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sealed.parents[3])
    EDITS[edit](sealed, random.Random(0))
    words = ["--server", "mcp_calculator"] if command[0] == "evaluate" else []
    last = [command[-1]] if command[-1] in ("--model", "--from-run") else []
    rest = command[1:-1] if last else command[1:]
    assert main([command[0], *rest, *last, str(sealed), *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert named in said and "Traceback" not in said


def test_a_run_that_has_changed_does_not_go_on(sealed: Path, ground: Path, tmp_path: Path) -> None:
    for name, file in (("train.jsonl", "train.jsonl"), ("difficulty.jsonl", "difficulty.jsonl")):
        kept = (sealed / file).read_bytes()
        (sealed / file).write_bytes(kept.replace(b"1", b"2", 1))
        with pytest.raises(RunDirectoryError, match=rf"{name} has changed since it was written: put back a good copy"):
            train(ground, "first", out=tmp_path / "out")
        (sealed / file).write_bytes(kept)


def test_without_its_seal_a_run_goes_on_and_says_so(
    sealed: Path, ground: Path, tmp_path: Path, capsys: Captured
) -> None:
    (sealed / SEAL).unlink()
    (sealed / "report.json").unlink()
    assert main(["history", str(sealed)]) == 0
    assert "cannot be verified: it has no seal.json" in " ".join(capsys.readouterr().out.split())
    train(ground, "first", out=tmp_path / "out")
    assert "cannot be verified: it has no seal.json" in " ".join(capsys.readouterr().out.split())
    assert verify(sealed) == 2
    assert not (sealed / SEAL).exists() and (sealed / "report.json").exists()


def test_lost_files_that_a_run_can_make_again_are_named(
    sealed: Path, ground: Path, tmp_path: Path, capsys: Captured
) -> None:
    for name in ("report.json", "difficulty.jsonl"):
        (sealed / name).unlink()
    train(ground, "first", out=tmp_path / "out")
    said = " ".join(capsys.readouterr().out.split())
    assert f"{sealed / 'report.json'} is gone" in said
    assert check_sealed(sealed) is not None and (sealed / "report.json").exists()


def forge(run: Path) -> None:
    """Make every held-out episode after training a success, and everything else agree with that."""
    path = run / "trajectories" / "val" / f"{STEPS:04d}.jsonl"
    groups = [TrajectoryGroup.model_validate_json(line) for line in path.read_bytes().splitlines()]
    for trajectory in (trajectory for group in groups for trajectory in group):
        segment = trajectory.segments[0]
        sampled = [i for i, own in enumerate(segment.sampled) if own]
        segment.tokens[sampled[-1]] += (2 - sum(segment.tokens[i] for i in sampled)) % 3
        trajectory.reward, trajectory.success, trajectory.metrics["verifier"] = 1.0, True, 1.0
    path.write_text("".join(group.model_dump_json() + "\n" for group in groups))
    found = summarize(groups, step=STEPS, greedy=True)
    state = json.loads((run / "state.json").read_bytes())
    state["after"] = found.model_dump(mode="json")
    (run / "state.json").write_text(json.dumps(state))
    report = json.loads((run / "report.json").read_bytes())
    report["details"]["after"], report["val"]["after"] = state["after"], found.summary()
    (run / "report.json").write_text(json.dumps(report))
    lines = [json.loads(line) for line in (run / "history.jsonl").read_bytes().splitlines()]
    lines[-1] |= {**rollout_metrics(groups, ["verifier"]), **evaluation_metrics(found)}
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reseal(run)


def test_a_consistent_forgery_is_found_by_playing_again_and_by_its_signature(
    sealed: Path, plugins: Plugins, ground: Path, tmp_path: Path, capsys: Captured
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    own = ["--plugin", str(ground / "checksum.py")]
    assert verify(sealed, *own, "--episodes", "0", "--sign", str(key)) == 0
    assert verify(sealed, *own, "--episodes", "0", "--check", f"{key}.pub") == 0
    assert "proven signature Signed by" in " ".join(capsys.readouterr().out.split())
    forge(sealed)
    (sealed / "seal.sig").rename(sealed / "aside")
    assert noticed(sealed, plugins) is None, "the files alone do not show it, as docs/verify.md says"
    (sealed / "aside").rename(sealed / "seal.sig")
    assert verify(sealed, *own, "--episodes", "0", "--check", f"{key}.pub", "--json") == 2
    assert standings(capsys.readouterr().out)["signature"] == "contradicted"
    (sealed / "seal.sig").unlink()
    assert verify(sealed, *own, "--episodes", "9", "--json") == 2
    assert standings(capsys.readouterr().out)["played again"] == "contradicted"


@pytest.mark.parametrize("kind", ["another key", "no key", "another run", "a damaged signature", "no signature"])
def test_a_signature_that_does_not_fit_is_refused(sealed: Path, tmp_path: Path, kind: str, capsys: Captured) -> None:
    for name in ("mine", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    assert verify(sealed, "--episodes", "0", "--sign", str(tmp_path / "mine")) == 0
    known, signature = tmp_path / "mine.pub", sealed / "seal.sig"
    match kind:
        case "another key":
            known = tmp_path / "other.pub"
        case "no key":
            known = sealed / "val.jsonl"
        case "another run":
            with open_run(sealed) as run:
                run.write_json("model.json", {**(run.read_json("model.json") or {}), "name": "renamed"})
        case "a damaged signature":
            content = json.loads(signature.read_bytes())
            content["signature"] = content["signature"][:9] + "AAAA" + content["signature"][13:]
            signature.write_text(json.dumps(content))
        case _:
            signature.unlink()
    capsys.readouterr()
    assert verify(sealed, "--episodes", "0", "--check", str(known)) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_a_run_names_is_not_executed(sealed: Path, plugins: Plugins, tmp_path: Path, capsys: Captured) -> None:
    witness = tmp_path / "executed"
    plugin = tmp_path / "evil.py"
    plugin.write_text(f"open({str(witness)!r}, 'w')")
    command = f"touch {witness}"
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"evil": {"command": "touch", "args": [str(witness)]}}}))
    for server, words in ((command, {}), ("evil", {"tools.server_config": str(servers)})):
        about = json.loads((sealed / "model.json").read_bytes())
        about["identity"]["server"] = server
        about["command"] |= {"server": [command], "plugins": [str(plugin)], **words}
        (sealed / "model.json").write_text(json.dumps(about))
        reseal(sealed)
        assert verify(sealed) == 0
        assert "started only if you name it: add --server" in " ".join(capsys.readouterr().out.split())
        assert not witness.exists()


# -- the seal itself


@pytest.mark.parametrize("kind", ["pipe", "device", "seal", "chain", "manifest"])
def test_a_run_leads_nowhere_else_and_to_nothing_without_end(sealed: Path, kind: str, capsys: Captured) -> None:
    """Each of them was read for ever."""
    said = "is not a file but a pipe, a socket or a device"
    match kind:
        case "pipe":
            (sealed / "val.jsonl").unlink()
            os.mkfifo(sealed / "val.jsonl")
        case "device":
            (sealed / "tools.json").unlink()
            (sealed / "tools.json").symlink_to("/dev/zero")
        case "seal":
            seal = read_seal(sealed)
            assert seal is not None
            Seal({**seal.files, "../../../../dev/zero": "0" * 64}).write(sealed)
            said = "seal.json has changed since it was written"
        case "chain":
            lines = follow_chain((sealed / "history.jsonl").read_bytes())
            lines[0] = replace(lines[0], wrote={**lines[0].wrote, "/dev/zero": "0" * 64})
            content, head = relinked(lines)
            (sealed / "history.jsonl").write_bytes(content)
            seal = read_seal(sealed)
            assert seal is not None
            Seal({**seal.files, "history.jsonl": head}).write(sealed)
            said = "was not written by this program"
        case "manifest":
            manifest = sealed / "checkpoints" / "0006" / "manifest.json"
            content = json.loads(manifest.read_bytes())
            content["files"]["/dev/zero"] = {"sha256": "0" * 64}
            manifest.write_text(json.dumps(content))
            assert find_damage(manifest.parent) == "manifest.json names files of other folders"
            return
    assert verify(sealed, "--episodes", "0") == 2
    told = capsys.readouterr()
    assert said in " ".join((told.out + told.err).split())


def test_a_kill_between_a_seal_and_its_file_is_no_damage(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.write_json("model.json", {"name": "first"})
        run.append_history({"step": 1, "split": "train"})
        run.write_files({"report.json": "{}\n"})
        before = (run.path / "report.json").read_bytes()
        run.write_files({"report.json": '{"step": 1}\n'})
        (run.path / "report.json").write_bytes(before)  # as if the kill had come before this file
        assert run.check_whole() == []
    assert RunDirectory(run.path).check_whole() == []
    seal = read_seal(run.path)
    assert seal is not None and not seal.announced
    (run.path / "report.json").write_text('{"step": 1}\n')
    with pytest.raises(RunDirectoryError, match=r"report\.json has changed since it was written"):
        RunDirectory(run.path).check_whole()


def test_a_line_cut_off_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        for step in (1, 2):
            run.save_trajectories("train", step, [])
            run.append_history({"step": step, "split": "train"})
        with (run.path / "history.jsonl").open("ab") as file:
            file.write(b'{"step": 3, "spl')
        assert run.check_whole() == []
        run.discard_after(1)
        run.save_trajectories("train", 2, [])
        run.append_history({"step": 2, "split": "train"})
        assert run.check_whole() == [] and [line["step"] for line in run.history()] == [1, 2]


def test_a_run_is_checked_while_it_goes_on(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.write_json("model.json", {})
        program = (
            "import sys, pathlib\nfrom mcp_rl.run_directory import RunDirectory\n"
            "run = RunDirectory(pathlib.Path(sys.argv[1]))\nprint('ready', flush=True)\n"
            "import threading; end = threading.Thread(target=sys.stdin.read); end.start()\n"
            "while end.is_alive(): assert run.check_whole() == []\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        words = [sys.executable, "-c", program, str(run.path)]
        with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdin is not None and reader.stdout is not None and reader.stdout.readline() == b"ready\n"
            for step in range(1, 21):
                run.save_trajectories("val", step, [])
                run.append_history({"step": step, "split": "val"})
                run.write_json("state.json", {"step": step})
                run.discard_after(step - step % 3)
            reader.stdin.close()
        assert reader.returncode == 0


def test_a_checkpoint_that_the_run_did_not_write_is_passed_over_and_named(sealed: Path, capsys: Captured) -> None:
    EDITS["weights are changed, with a new manifest"](sealed, random.Random(0))
    assert main(["export", f"{sealed}@{STEPS}", "--out", str(sealed.parent / "at"), "--format", "adapter"]) == 2
    assert "it is not the one that the run wrote" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(sealed), "--out", str(sealed.parent / "newest"), "--format", "adapter"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0006 is damaged (it is not the one that the run wrote), so the one before it is used" in said


def test_episodes_that_no_line_vouches_for_are_not_shown(sealed: Path, tmp_path: Path, capsys: Captured) -> None:
    made_up = sealed / "trajectories" / "train" / "0099.jsonl"
    shutil.copy(sealed / "trajectories" / "train" / "0001.jsonl", made_up)
    assert main(["export-trajectories", str(sealed), "--out", str(tmp_path / "all.jsonl")]) == 0
    assert "-0099" not in (tmp_path / "all.jsonl").read_text()
    assert main(["report", str(sealed)]) == 0 and "training step 99" not in (sealed / "report.html").read_text()


def test_an_evaluation_has_digests_too(run: Path, ground: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["--server", "mcp_calculator", "--transport", "stdio", "--plugin", str(ground / "checksum.py")]
    more = ["--model", str(run), "--count", "1", "--samples", "1", "--output-dir", str(tmp_path), "--name", "e"]
    assert main(["evaluate", *words, *more]) == 0
    folder = tmp_path / "default" / "evaluations" / "e"
    assert verify(folder) == 0
    report = json.loads((folder / "report.json").read_bytes())
    report["models"][0]["result"]["greedy"]["success"] = 1.0
    (folder / "report.json").write_text(json.dumps(report))
    capsys.readouterr()
    assert verify(folder) == 2 and main(["report", str(folder)]) == 2
    assert "report.json has changed since it was written" in " ".join(capsys.readouterr().err.split())
