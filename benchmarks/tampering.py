"""Damage and edit a finished run in many ways, and count what is noticed.

    python -m benchmarks.tampering RUN --flips 1000 --edits 100

A flip changes one random byte of a random file. An edit is what a person or a program would do on purpose; some of them
make the digests anew, as far as they know them. Each is undone before the next. The run itself is only copied.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from mcp_rl.errors import McpRlError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.runs.verify.run import VerifyRequest, verify_run
from mcp_rl.system.chain import LINK, ChainedLine, digest_of, relinked
from mcp_rl.system.seals import HISTORY, SEAL, Seal, file_digest, read_seal

NOT_COVERED = ("live/", "logs/", "tensors/", "judge/calls.jsonl", "tensorboard/")
"""Files from which nothing is shown, trained or compared (docs/verify.md)."""
Edit = Callable[[Path, random.Random], None]


def noticed(run: Path, plugins: Plugins) -> str | None:
    """Return what `mcp-rl verify` says against a run, without playing anything; None if nothing."""
    try:
        found = anyio.run(verify_run, VerifyRequest(run, episodes=0), plugins, print)
    except McpRlError as error:
        return str(error)
    return next((f"{claim.name}: {claim.said}" for claim in found.claims if claim.standing == "contradicted"), None)


def covered(run: Path) -> list[Path]:
    """Return the files of a run that must not change unnoticed."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file())
    return [path for path in files if not path.relative_to(run).as_posix().startswith(NOT_COVERED)]


def flip(run: Path, moments: random.Random) -> tuple[Path, Callable[[], None]]:
    """Change one byte of a run; return its file, and what changes it back."""
    path = moments.choice([path for path in covered(run) if path.stat().st_size])
    place, change = moments.randrange(path.stat().st_size), moments.randrange(1, 256)

    def turn() -> None:
        with path.open("r+b") as file:
            file.seek(place)
            [byte] = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ change]))

    turn()
    return path, turn


# -- edits


def change_json(name: str, change: Callable[[Any], None]) -> Edit:
    """Return an edit of a JSON file."""

    def edit(run: Path, moments: random.Random) -> None:
        content = json.loads((run / name).read_bytes())
        change(content)
        (run / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    return edit


def change_lines(pattern: str, change: Callable[[list[Any], random.Random], list[Any] | None]) -> Edit:
    """Return an edit of the objects of a random JSON Lines file."""

    def edit(run: Path, moments: random.Random) -> None:
        path = moments.choice(sorted(run.glob(pattern)))
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        changed = change(lines, moments)
        kept = lines if changed is None else changed
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))

    return edit


def raw_lines(pattern: str, change: Callable[[list[bytes], random.Random], list[bytes]]) -> Edit:
    """Return an edit of the lines of a random file as they stand."""

    def edit(run: Path, moments: random.Random) -> None:
        path = moments.choice(sorted(run.glob(pattern)))
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True), moments)))

    return edit


def resealed(edit: Edit) -> Edit:
    """Return an edit after which all digests are made anew."""

    def edit_and_seal(run: Path, moments: random.Random) -> None:
        edit(run, moments)
        reseal(run)

    return edit_and_seal


def reseal(run: Path) -> None:
    """Make the chain and the seal of a run anew, as a forger would."""
    lines = []
    for number, text in enumerate((run / HISTORY).read_bytes().splitlines(), 1):
        fields = json.loads(text)
        wrote = fields.pop(LINK)["wrote"]
        lines.append(ChainedLine(number, fields, {name: file_digest(run / name) or "" for name in wrote}))
    content, head = relinked(lines)
    (run / HISTORY).write_bytes(content)
    known = json.loads((run / SEAL).read_bytes())["files"]
    files = {name: file_digest(run / name) or "" for name in known if (run / name).exists()}
    Seal({**files, HISTORY: head}).write(run)
    (run / "report.html").unlink(missing_ok=True)


def reseal_checkpoint(folder: Path, step: int) -> None:
    """Make the manifest of a checkpoint anew."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    entries = {name: {**known, "sha256": file_digest(folder / name)} for name, known in manifest["files"].items()}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "step": step, "files": entries}, indent=2))


def _expected(lines: list[Any], moments: random.Random) -> None:
    for line in lines:
        line["verifier"]["expected"] = 99999


def _task(lines: list[Any], moments: random.Random) -> None:
    moments.choice(lines)["task_description"] += " please"


def _reference(lines: list[Any], moments: random.Random) -> None:
    moments.choice(lines)["reference"] = []


def _metric(lines: list[Any], moments: random.Random) -> None:
    line = moments.choice(lines)
    name = moments.choice([key for key, value in line.items() if isinstance(value, float) and key != "step"])
    line[name] = line[name] + 1.0


def _all_successes(lines: list[Any], moments: random.Random) -> None:
    for line in lines:
        for name in line:
            if name.endswith("success"):
                line[name] = 1.0


def _win(lines: list[Any], moments: random.Random) -> None:
    for line in lines:
        for trajectory in line["trajectories"]:
            trajectory["reward"], trajectory["success"] = 0.5, not trajectory["success"]


def _answer(lines: list[Any], moments: random.Random) -> None:
    moments.choice(moments.choice(lines)["trajectories"])["messages"][-1]["content"] = "The answer is 99999."


def _token(lines: list[Any], moments: random.Random) -> None:
    segment = moments.choice(moments.choice(lines)["trajectories"])["segments"][0]
    segment["tokens"][-1] += 1


def _logprob(lines: list[Any], moments: random.Random) -> None:
    segment = moments.choice(moments.choice(lines)["trajectories"])["segments"][0]
    segment["logprobs"][-1] -= 0.5


def _drop_episode(lines: list[Any], moments: random.Random) -> None:
    episodes = moments.choice([line["trajectories"] for line in lines if line["trajectories"]])
    episodes.pop(moments.randrange(len(episodes)))


def _drop(lines: list[Any], moments: random.Random) -> list[Any]:
    at = moments.randrange(len(lines))
    return [*lines[:at], *lines[at + 1 :]]


def _drop_last(lines: list[Any], moments: random.Random) -> list[Any]:
    return lines[:-1]


def _swap(lines: list[Any], moments: random.Random) -> list[Any]:
    one, other = moments.sample(range(len(lines)), 2)
    lines = list(lines)
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _double(lines: list[Any], moments: random.Random) -> list[Any]:
    return [*lines, moments.choice(lines)]


def _own_digest(lines: list[bytes], moments: random.Random) -> list[bytes]:
    """Change a line and its own digest, as far as a forger sees without looking further."""
    at = moments.randrange(len(lines))
    fields = json.loads(lines[at])
    link = fields.pop(LINK)
    fields["success"] = 1.0
    body = json.dumps({**fields, LINK: {"wrote": link["wrote"], "previous": link["previous"]}}, ensure_ascii=False)
    lines[at] = f'{body[:-2]}, "digest": "{digest_of(body.encode())}"}}}}\n'.encode()
    return lines


def _exchange(one: str, other: str) -> Edit:
    def edit(run: Path, moments: random.Random) -> None:
        (run / one).rename(run / "aside")
        (run / other).rename(run / one)
        (run / "aside").rename(run / other)

    return edit


def _truncate(pattern: str) -> Edit:
    def edit(run: Path, moments: random.Random) -> None:
        path = moments.choice(sorted(run.glob(pattern)))
        content = path.read_bytes()
        path.write_bytes(content[: moments.randrange(len(content))])

    return edit


def _remove(pattern: str) -> Edit:
    def edit(run: Path, moments: random.Random) -> None:
        moments.choice(sorted(run.glob(pattern))).unlink()

    return edit


def _checkpoints(run: Path) -> list[Path]:
    return sorted(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())


def _other_checkpoint(run: Path, moments: random.Random) -> None:
    first, *_, last = _checkpoints(run)
    shutil.rmtree(last)
    shutil.copytree(first, last)


def _other_checkpoint_resealed(run: Path, moments: random.Random) -> None:
    _other_checkpoint(run, moments)
    last = _checkpoints(run)[-1]
    reseal_checkpoint(last, int(last.name))


def _further_checkpoint(run: Path, moments: random.Random) -> None:
    last = _checkpoints(run)[-1]
    further = last.with_name(f"{int(last.name) + 2:04d}")
    shutil.copytree(last, further)
    reseal_checkpoint(further, int(further.name))


def _weights(run: Path, moments: random.Random) -> None:
    last = _checkpoints(run)[-1]
    path = last / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-8:] = bytes(8)
    path.write_bytes(bytes(content))
    reseal_checkpoint(last, int(last.name))


def _older_state(run: Path, moments: random.Random) -> None:
    """Put back the state of an earlier step, as a copy made then would."""
    content = json.loads((run / "state.json").read_bytes())
    content["step"], content["after"], content["after_step"] = content["step"] - 2, None, None
    (run / "state.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _wipe_chain(run: Path, moments: random.Random) -> None:
    lines = [json.loads(line) for line in (run / HISTORY).read_bytes().splitlines()]
    for line in lines:
        line.pop(LINK)
    (run / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _foreign_page(run: Path, moments: random.Random) -> None:
    page = run / "report.html"
    page.write_text(page.read_text().replace("success", "triumph", 1))


def _report_value(content: dict[str, Any]) -> None:
    content["val"]["after"]["success"] = 1.0


def _report_whole(content: dict[str, Any]) -> None:
    content["val"]["after"]["success"] = content["details"]["after"]["greedy"]["success"] = 1.0


def _state_whole(content: dict[str, Any]) -> None:
    content["after"]["greedy"]["success"] = 1.0


def _leak(run: Path, moments: random.Random) -> None:
    """Move a held-out task to the training tasks."""
    lines = (run / "val.jsonl").read_bytes().splitlines(keepends=True)
    with (run / "train.jsonl").open("ab") as file:
        file.write(lines[0])


EPISODES, VAL = "trajectories/*/*.jsonl", "trajectories/val/*.jsonl"
EVALUATIONS = "trajectories/val/0000.jsonl", "trajectories/val/0006.jsonl"
"""Of a run of six steps."""
EDITS: dict[str, Edit] = {
    "every expected answer of the held-out tasks is 99999": change_lines("val.jsonl", _expected),
    "every expected answer of the training tasks is 99999": change_lines("train.jsonl", _expected),
    "a task is reworded": change_lines("[tv]*l.jsonl", _task),
    "a reference is removed": change_lines("val.jsonl", _reference),
    "a held-out task is removed": change_lines("val.jsonl", _drop),
    "a training task is removed": change_lines("train.jsonl", _drop),
    "two training tasks are swapped": change_lines("train.jsonl", _swap),
    "train and val are exchanged": _exchange("train.jsonl", "val.jsonl"),
    "every success in the history is 1": change_lines(HISTORY, _all_successes),
    "a metric in the history is raised": change_lines(HISTORY, _metric),
    "a line of the history is removed": raw_lines(HISTORY, _drop),
    "the last line of the history is removed": raw_lines(HISTORY, _drop_last),
    "two lines of the history are swapped": raw_lines(HISTORY, _swap),
    "a line of the history is doubled": raw_lines(HISTORY, _double),
    "a line of the history is changed, with its own digest": raw_lines(HISTORY, _own_digest),
    "the chain is taken out of the history": _wipe_chain,
    "verdicts of episodes are turned round": change_lines(EPISODES, _win),
    "an answer is changed": change_lines(EPISODES, _answer),
    "a token is changed": change_lines("trajectories/train/*.jsonl", _token),
    "a logprob is changed": change_lines("trajectories/train/*.jsonl", _logprob),
    "an episode is dropped": change_lines(EPISODES, _drop_episode),
    "a group is dropped": change_lines(EPISODES, _drop),
    "a file of episodes is removed": _remove(EPISODES),
    "evaluations before and after are exchanged": _exchange(
        "trajectories/val/0000.jsonl", "trajectories/val/0006.jsonl"
    ),
    "the table of the report is changed": change_json("report.json", _report_value),
    "the report is changed throughout": change_json("report.json", _report_whole),
    "the state's evaluation is changed": change_json("state.json", _state_whole),
    "an older state is put back": _older_state,
    "the state is removed": _remove("state.json"),
    "the difficulty of a task is changed": change_lines("difficulty.jsonl", lambda ls, m: ls[0].update(pass_rate=0.99)),
    "a tool's description is changed": change_json(
        "tools.json", lambda tools: tools[0]["function"].update(description="Call me.")
    ),
    "a setting of the run is changed": change_json("model.json", lambda about: about["identity"].update(seed=77)),
    "the recorded command is changed": change_json("model.json", lambda about: about["command"].update(server=["sh"])),
    "a checkpoint is replaced by an earlier one": _other_checkpoint,
    "a checkpoint is replaced by an earlier one, with a new manifest": _other_checkpoint_resealed,
    "a checkpoint is added": _further_checkpoint,
    "weights are changed, with a new manifest": _weights,
    "a file is cut off": _truncate("*.json*"),
    "a file of episodes is cut off": _truncate(EPISODES),
    "a file of a checkpoint is cut off": _truncate("checkpoints/*/*.json"),
    "the page is changed": _foreign_page,
    "a digest in the seal is changed": change_json(SEAL, lambda seal: seal["files"].update({"val.jsonl": "0" * 64})),
    "a file is taken out of the seal": change_json(SEAL, lambda seal: seal["files"].pop("val.jsonl")),
    "the seal is removed": _remove(SEAL),
    "every success in the history is 1, with new digests": resealed(change_lines(HISTORY, _all_successes)),
    "verdicts are turned round, with new digests": resealed(change_lines(VAL, _win)),
    "expected answers are changed, with new digests": resealed(change_lines("val.jsonl", _expected)),
    "the report is changed, with new digests": resealed(change_json("report.json", _report_whole)),
    "the state is changed, with new digests": resealed(change_json("state.json", _state_whole)),
    "a held-out task is trained on, with new digests": resealed(_leak),
    "an episode is dropped, with new digests": resealed(change_lines(VAL, _drop_episode)),
    "evaluations are exchanged, with new digests": resealed(_exchange(*EVALUATIONS)),
}
"""Deliberate edits by what they do."""


def count_flips(run: Path, count: int, plugins: Plugins, moments: random.Random) -> dict[str, Any]:
    """Flip bytes of a run, one at a time; return how many, and those that nothing said anything about."""
    missed, files = [], Counter[str]()
    for _ in range(count):
        path, back = flip(run, moments)
        files[path.suffix] += 1
        if noticed(run, plugins) is None:
            missed.append(path.relative_to(run).as_posix())
        back()
    return {"flips": count, "missed": missed, "files": dict(files)}


def count_edits(run: Path, count: int, plugins: Plugins, moments: random.Random) -> dict[str, Any]:
    """Edit copies of a run, each edit as often as the others; return how many, and those that passed unnoticed."""
    names, missed, said = list(EDITS), [], {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            copied = Path(folder) / run.name
            shutil.copytree(run, copied)
            name = names[number % len(names)]
            EDITS[name](copied, moments)
            said[name] = noticed(copied, plugins)
            if said[name] is None:
                missed.append(name)
            shutil.rmtree(copied)
    return {"edits": count, "missed": missed, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    plugins, moments = load_plugins(map(str, asked.plugin)), random.Random(asked.seed)
    assert read_seal(asked.run) is not None and noticed(asked.run, plugins) is None, noticed(asked.run, plugins)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / asked.run.name
        shutil.copytree(asked.run, copied)
        flips = count_flips(copied, asked.flips, plugins, moments)
    edits = count_edits(asked.run, asked.edits, plugins, moments)
    print(json.dumps({"flips": flips, "edits": edits, "seconds": round(time.monotonic() - began, 1)}, indent=2))


if __name__ == "__main__":
    main()
