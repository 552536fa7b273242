"""Fine-tuning on conversations: the right loss, a run's checkpoints, the same bits after a stop.

The model is the built-in one; the training run, its server, engine and episodes are real.
"""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from mcp_rl.cli import main
from mcp_rl.config import TINY, RunConfig, TrainConfig
from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.conversation import conversation, render
from mcp_rl.learning.sft import held_out_loss, sample_of, supervise
from mcp_rl.runs.sft import run as sft_run
from mcp_rl.runs.sft.demonstrations import Demonstration, hold_out, read_episodes
from mcp_rl.runs.sft.report import SftReport, next_command
from mcp_rl.runs.sft.run import run_sft
from mcp_rl.runs.sft.settings import sft_config
from mcp_rl.runs.train import run_training
from tests.random_base import write_smallest_base

QUIET = Console(quiet=True)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}
    for name in ("add", "subtract")
]


def line(number: int) -> str:
    """A correct conversation whose request is worded as the built-in model has never seen it."""
    a, b, name = 3 + number % 7, 11 + number, ("add", "subtract")[number % 2]
    request = f"what do I have of {a} and {b} {'together' if name == 'add' else 'once the latter is gone'}?"
    function = {"name": name, "arguments": json.dumps({"a": a, "b": b})}
    answer = str(a + b if name == "add" else a - b)
    return json.dumps(
        {
            "messages": [
                {"role": "user", "content": request},
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "c", "content": answer},
                {"role": "assistant", "content": answer},
            ],
            "tools": TOOLS,
        }
    )


def tuned(place: Path, data: Path, *overrides: str, name: str = "a", fresh: bool = False, **options: Any) -> SftReport:
    given = {"output_dir": place, "epochs": 2, "batch_size": 8, "held_out": 0.2, **options}
    config = sft_config([data], ["train.checkpoint_every=3", *overrides], name=name, options=given)
    return run_sft(config, fresh=fresh, console=QUIET)


def history(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(text) for text in (run / "history.jsonl").read_text().splitlines()]
    return [{k: value for k, value in found.items() if not k.endswith("_seconds") and k != "chain"} for found in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "calls.jsonl"
    file.write_text("".join(f"{line(number)}\n" for number in range(30)) + f"{line(0)}\n")
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run that was never stopped."""
    report = tuned(tmp_path_factory.mktemp("whole"), data)
    assert (report.conversations, report.held_out, report.step) == (24, 6, 6)
    assert report.held_out_loss_before is not None and report.held_out_loss_after is not None
    assert report.held_out_loss_after < 0.5 * report.held_out_loss_before
    return Path(report.run_dir)


def rewarded(place: Path, name: str, *, steps: int, init: Path | None = None) -> RunConfig:
    return RunConfig.model_validate(
        {
            "server": "mcp_calculator", "name": name, "output_dir": place, "steps": steps, "init": init,
            "scenarios": {"count": 60, "val": 20, "max_steps": 1},
            "rollout": {"groups_per_step": 10, "group_size": 6, "probes": 0},
            "evaluation": {"samples": 4, "greedy": False},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A training run of one step."""
    config = rewarded(tmp_path_factory.mktemp("played"), "rl", steps=1)
    anyio.run(lambda: run_training(config, console=QUIET))
    return config


def test_loss_is_the_cross_entropy_of_assistant_tokens() -> None:
    from mcp_rl.backends.base.base_model import load_base, make_learner

    learner = make_learner(load_base(TINY)[0], TINY, TrainConfig(microbatch_tokens=256, max_grad_norm=1e9))
    chat = ChatFormat(load_base(TINY)[1])
    rendered = [render(conversation(json.loads(line(number)), "here"), chat) for number in range(5)]
    plain, weights = load_base(TINY)[0], [0.0, 0.0]
    for tokens, learned in rendered:
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([tokens])).logits[0, :-1]
        kept = torch.tensor(learned[1:])
        weights[0] += float(F.cross_entropy(logits[kept], torch.tensor(tokens)[1:][kept], reduction="sum"))
        weights[1] += int(kept.sum())
    samples = [sample_of(*each) for each in rendered]
    assert held_out_loss(learner, samples) == pytest.approx(weights[0] / weights[1], rel=1e-5)
    metrics = supervise(learner, samples)
    assert metrics["loss"] == pytest.approx(weights[0] / weights[1], rel=1e-5)
    assert metrics["trained_tokens"] == weights[1]
    assert metrics["forward_tokens"] < metrics["unshared_tokens"]
    assert learner.step == 1


def _stop_at(step: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = supervise

    def stopping(learner: Any, samples: Sequence[Any]) -> dict[str, float]:
        if learner.step == step and how == "crash":
            raise OSError("the machine is gone")
        metrics = done(learner, samples)
        if learner.step == step and how == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        return metrics

    monkeypatch.setattr("mcp_rl.learning.sft.supervise", stopping)


@pytest.mark.parametrize(("step", "how", "kept"), [(2, "crash", 0), (5, "crash", 3), (4, "ctrl-c", 4)])
def test_a_stopped_run_continues_to_the_same_bits(
    step: int, how: str, kept: int, whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _stop_at(step, how, patch)
        with pytest.raises(KeyboardInterrupt if how == "ctrl-c" else OSError):
            tuned(tmp_path, data)
    run = tmp_path / "default" / "models" / "a"
    assert json.loads((run / "state.json").read_text())["step"] == kept
    tuned(tmp_path, data)
    assert history(run) == history(whole)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (run / "checkpoints/0006" / name).read_bytes() == (whole / "checkpoints/0006" / name).read_bytes()


def test_a_run_without_its_checkpoints_does_not_start_over(whole: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "default/models/a", ignore=lambda folder, names: {"checkpoints"} & set(names))
    with pytest.raises(RunDirectoryError, match="is at step 6, but its checkpoints are gone"):
        tuned(tmp_path, data)


def test_a_finished_run_stays_and_other_settings_are_refused(whole: Path, data: Path, tmp_path: Path) -> None:
    place = whole.parents[2]
    before = (whole / "history.jsonl").read_bytes()
    assert tuned(place, data).step == 6
    assert (whole / "history.jsonl").read_bytes() == before
    with pytest.raises(RunDirectoryError, match=r"another epochs \(was 2, is 3\).*train.decay_steps"):
        tuned(place, data, epochs=3)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(f"{line(number)}\n" for number in range(40, 60)))
    with pytest.raises(RunDirectoryError, match="another data "):
        tuned(place, other)


def test_episodes_render_to_sampled_tokens_and_can_be_imitated(
    played: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    from mcp_rl.backends.base.base_model import load_base

    chat = ChatFormat(load_base(TINY)[1])
    tools = _tools_of(played)
    same = 0
    for source in read_episodes(played.run_dir):
        for trajectory in (t for _, group in source.groups for t in group if t.success):
            if any(call.is_error for call in trajectory.calls):
                continue  # the text of a mistake that was corrected later may differ from the template's
            found = conversation({"messages": trajectory.messages, "tools": tools}, "here")
            tokens, learned = render(found, chat)
            assert chat.tokenizer.decode(tokens) == chat.tokenizer.decode(trajectory.segments[0].tokens)
            same += tokens == trajectory.segments[0].tokens and learned == trajectory.segments[0].sampled
    assert same >= 3
    place = str(played.output_dir)
    assert main(["sft", "--from-run", "rl", "--output-dir", place, "--name", "rft", "--json", "--epochs", "6"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    losses = [found["loss"] for found in history(Path(report["run_dir"])) if found["split"] == "train"]
    assert losses[-1] < 0.5 * losses[0]
    assert "Go on with rewards: mcp-rl train --server SERVER --init " in printed.err
    # a training run can begin with the fine-tuned weights
    better = anyio.run(
        lambda: run_training(rewarded(played.output_dir, "rl2", steps=0, init=Path(report["run_dir"])), console=QUIET)
    )
    first, learned = (
        sorted((folder / "checkpoints").glob("[0-9]*"))[-1] / "adapter_model.safetensors"
        for folder in (Path(better.run_dir), Path(report["run_dir"]))
    )
    assert first.read_bytes() == learned.read_bytes()
    base = json.loads((played.run_dir / "report.json").read_text())["val"]["before"]["success"]
    assert better.val.before.success is not None and better.val.before.success > base  # of 80 episodes each


def _tools_of(played: RunConfig) -> list[dict[str, Any]]:
    """The tool schemas in the episodes' prompts, parsed from their first tokens."""
    from mcp_rl.backends.base.base_model import load_base

    tokens = next(t for source in read_episodes(played.run_dir) for _, group in source.groups for t in group)
    text = str(load_base(TINY)[1].decode(tokens.segments[0].tokens))
    return [json.loads(row) for row in text.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")]


def test_a_fine_tuning_can_begin_with_a_training_run(played: RunConfig, data: Path, tmp_path: Path) -> None:
    fresh = tuned(tmp_path, data, name="fresh", epochs=1)
    begun = tuned(tmp_path, data, name="begun", epochs=1, init=played.run_dir)
    assert begun.base_model == TINY
    assert begun.held_out_loss_before != fresh.held_out_loss_before
    assert begun.held_out_loss_after is not None and begun.held_out_loss_before is not None
    assert begun.held_out_loss_after < begun.held_out_loss_before


def test_hold_out_keeps_prompts_apart_and_its_share() -> None:
    made = [Demonstration((n % 10, 5, n), (False, False, True), f"line {n}") for n in range(40)]
    train, held = hold_out(made, 0.2, seed=1)
    assert {one.opening for one in train}.isdisjoint({one.opening for one in held})
    assert (len(train), len(held)) == (32, 8)
    assert hold_out(made, 0.2, seed=1) == (train, held) != hold_out(made, 0.2, seed=2)
    assert hold_out(made, 0.0, seed=1) == (made, [])
    assert hold_out(made[:1], 0.5, seed=1) == (made[:1], [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sft"], "Fine-tuning needs data"),
        (["sft", "nowhere.jsonl"], "Cannot read the conversations nowhere.jsonl: No such file"),
        (["sft", "."], ". is a folder; name a JSON Lines file"),
        (["sft", "--from-run", "nobody"], "There is no run 'nobody'"),
        (["sft", "DATA", "train.loss=gspo"], "train.loss has no meaning in fine-tuning"),
        (["sft", "DATA", "train.epochs=3"], "give --epochs instead"),
        (["sft", "DATA", "train.learning_rat=3"], "did you mean 'train.learning_rate'?"),
        (["sft", "DATA", "rollout.probes=3"], "rollout.probes cannot be set here"),
        (["sft", "DATA", "train.learning_rate=-3"], "train.learning_rate = -3 does not work"),
        (["sft", "DATA", "--epochs", "0"], "--epochs 0 does not work"),
        (["sft", "DATA", "--held-out", "1"], "--held-out 1.0 does not work"),
        (["sft", "DATA", "--init", "nowhere"], "There is nothing to begin with in nowhere"),
        (["sft", "DATA", "--base-model", "./nowhere"], "There is no base model in ./nowhere"),
        (["sft", "BROKEN"], "broken.jsonl, line 1: messages: field required"),
        (["sft", "LIST"], "list.jsonl, line 1: this is not a JSON object; each line must be one with messages"),
        (["sft", "HALF"], r"half.jsonl, line 1: this is not valid JSON: '\ud83d' is half of a character"),
        (["sft", "CALL"], r"call.jsonl, line 1: messages.1.tool_calls.0.function.arguments: not valid JSON: '\ud83d'"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_starts(
    words: list[str], complaint: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    half = json.loads(line(0))
    half["messages"][1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"a": "\ud83d"})
    broken = {
        "BROKEN": '{"mesages": []}',
        "LIST": "[1]",
        "HALF": json.dumps({"messages": [{"role": "user", "content": "\ud83d"}]}),
        "CALL": json.dumps(half),
    }
    for name, text in broken.items():
        (tmp_path / f"{name.lower()}.jsonl").write_text(text + "\n")
    assert (
        main([str(data) if word == "DATA" else f"{word.lower()}.jsonl" if word in broken else word for word in words])
        == 2
    )
    said = capsys.readouterr().err.strip()
    assert complaint in said and "\n" not in said
    assert not list(tmp_path.glob(".mcp_rl/default/models/*/checkpoints/*"))


def test_an_episode_of_another_model_is_refused(played: RunConfig, tmp_path: Path) -> None:
    file = sorted((played.run_dir / "trajectories/train").glob("*.jsonl"))[0]
    group = json.loads(file.read_text().splitlines()[0])
    group["trajectories"] = [
        t | {"reward": 1.0, "segments": [{"tokens": [1, 99999], "sampled": [False, True], "logprobs": [0.0, -1.0],
        "versions": [-1, 0]}]} for t in group["trajectories"][:1]
    ]  # fmt: skip
    (tmp_path / "other.jsonl").write_text(json.dumps(group) + "\n")
    with pytest.raises(ConfigError, match=r"other\.jsonl, line 1: the episode has the token 99999"):
        tuned(tmp_path, tmp_path / "other.jsonl")
    group["trajectories"][0]["reward"] = 0.5
    (tmp_path / "other.jsonl").write_text(json.dumps(group) + "\n")
    with pytest.raises(ConfigError, match=r"has a reward of 1 or more; lower --min-reward"):
        tuned(tmp_path, tmp_path / "other.jsonl")


def test_the_next_command_names_the_adapter_settings(whole: Path, data: Path, tmp_path: Path) -> None:
    config = sft_config([data], ["train.lora.rank=4"], name="b", options={"output_dir": tmp_path})
    report = SftReport.model_validate_json((whole / "report.json").read_text())
    word = next_command(config, report.model_copy(update={"best_step": 6, "step": 6}))
    assert word == f"mcp-rl train --server SERVER --init {whole} train.lora.rank=4"
    assert "checkpoints/0003" in next_command(config, report.model_copy(update={"best_step": 3, "step": 6}))
    assert sft_run.KIND in json.loads((whole / "model.json").read_text())


def test_conversations_have_the_form_that_is_set_or_that_of_the_run_to_begin_with(tmp_path: Path, data: Path) -> None:
    base = tmp_path / "base"
    write_smallest_base(base)
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    plain += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (base / "chat_template.jinja").write_text(plain)
    given = {"output_dir": tmp_path, "epochs": 1, "batch_size": 32}
    words = {"base_model": str(base), "name": "a", "options": given}
    with pytest.raises(ConfigError, match=r"leaves the tools out of the prompt: set chat\.format=hermes"):
        run_sft(sft_config([data], [], **words), console=QUIET)  # type: ignore[arg-type]
    config = sft_config([data], ["chat.format=hermes"], **words)  # type: ignore[arg-type]
    run_sft(config, console=QUIET)
    assert json.loads((config.run_dir / "model.json").read_text())["loaded"]["chat"]["format"] == "hermes"
    later = sft_config([data], [], name="b", options={**given, "init": config.run_dir})
    assert later.chat.format == "hermes" and later.base_model == str(base)
