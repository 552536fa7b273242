"""The pretraining command makes the built-in model's files, and its corpus is encoded like rollouts."""

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from jsonschema import Draft202012Validator
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.tiny import weights_path
from mcp_rl.tiny.architecture import tiny_config
from mcp_rl.tiny.corpus import conversation
from mcp_rl.tiny.mixture import toolset_and_conversations
from mcp_rl.tiny.pretrain import LONGEST, Packer, collate, logits_and_targets, main, take_over
from mcp_rl.tiny.strangers import strange_server
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.tiny.told import told_conversation
from mcp_rl.tiny.tools import random_expression, random_result, random_text, random_toolset


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


def test_shipped_tokenizer_is_the_one_that_the_command_builds(chat: ChatFormat) -> None:
    built, rng = build_tokenizer(), random.Random(0)
    for _ in range(300):
        text = f"{random_text(rng)} {random_result(rng)} {random_expression(rng)} getFiles é日 \n\n"
        assert built.encode(text) == chat.encode(text)
        assert chat.tokenizer.decode(chat.encode(text)) == text


def test_a_word_has_the_same_ids_wherever_it_stands(chat: ChatFormat) -> None:
    word = chat.encode("subtract")
    for frame in ("please {}", '"{}"', '{{"name": "{}"', "({})", "{}_it"):
        ids = chat.encode(frame.format("subtract"))
        assert any(ids[i : i + len(word)] == word for i in range(len(ids)))


def test_every_call_in_the_corpus_can_be_read_back(chat: ChatFormat) -> None:
    rng = random.Random(1)
    calls = 0
    for _ in range(60):
        tools, conversations = toolset_and_conversations(rng, 8)
        for turns in conversations:
            for turn in turns:
                if turn.learn and "<tool_call>" in turn.text:
                    parsed = parse_completion(turn.text)
                    assert all(call.error is None for call in parsed.calls)
                    assert {call.name for call in parsed.calls} <= {tool.name for tool in tools}
                    calls += len(parsed.calls)
    assert calls > 400


def test_the_corpus_guesses_some_numbers_and_nothing_else() -> None:
    rng = random.Random(2)
    guessed, called = [], []
    for _ in range(100):
        tools = random_toolset(rng)
        for turns in [conversation(rng, tools) for _ in range(8)]:
            first = next(turn.text for turn in turns if turn.role == "assistant")
            if first.startswith("I think"):
                guessed.append(first)
                assert any(tool.family != "record" for tool in tools)
                assert float(first.removeprefix("I think it is ").removesuffix(".")) is not None
                assert len(turns) == 2
            elif first != "I have no tool for that.":
                called.append(first)
    assert all("<tool_call>" in text for text in called)
    assert 0.1 < len(guessed) / (len(guessed) + len(called)) < 0.5


def test_a_told_request_fits_the_tool_and_holds_its_values() -> None:
    rng, named, calls = random.Random(5), 0, 0
    for _ in range(600):
        server = strange_server(rng)
        turns = told_conversation(rng, server)
        if turns is None:
            continue
        [call] = parse_completion(turns[1].text).calls
        tool = next(tool for tool in server.tools.values() if tool.name == call.name)
        Draft202012Validator(tool.schema["function"]["parameters"]).validate(call.arguments)
        calls, named = calls + 1, named + (tool.name in turns[0].text)
        if len(turns) == 4 and "/" not in str(call.arguments):  # a place is told in two parts
            said = turns[0].text.casefold()
            assert all(text.casefold() in said for text in _texts(call.arguments)), (turns[0].text, call.arguments)
    assert calls > 300
    assert named < calls / 50


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_a_packed_conversation_is_token_for_token_a_rollout(chat: ChatFormat) -> None:
    packer, seed = Packer(chat, 3, 4), random.Random(3)
    tools, conversations = toolset_and_conversations(seed, 4)
    packed = packer.draw()
    kept = [turns for turns in conversations if len(packer.encode(turns)[0]) <= LONGEST]
    assert kept
    for turns, (ids, _) in zip(kept, packed.branches, strict=True):
        opening = chat.initial([{"role": "user", "content": turns[0].text}], [tool.schema for tool in tools])
        assert (packed.prefix + ids)[: len(opening)] == opening


def test_shared_prefixes_have_the_loss_of_separate_sequences(chat: ChatFormat) -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path()).eval()
    packed = Packer(chat, 5, 3).draw()
    positions = list(range(len(packed.prefix)))
    packed = type(packed)(packed.prefix, positions, packed.branches)
    with torch.inference_mode():
        shared = sum(
            torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            for logits, targets, _ in logits_and_targets(model, collate([packed], 0, rows=2))
        )
        separate = 0.0
        for ids, mask in packed.branches:
            logits = model(torch.tensor([packed.prefix + ids])).logits[0]
            learn = torch.tensor([False] * len(packed.prefix) + mask)
            targets = torch.tensor(packed.prefix + ids)[learn]
            separate += torch.nn.functional.cross_entropy(logits[:-1][learn[1:]], targets, reduction="sum").item()
    assert shared == pytest.approx(separate, rel=1e-4)


def test_weights_are_a_million_parameters_and_a_half() -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path())
    assert 1.2e6 < sum(p.numel() for p in model.parameters()) < 1.5e6


def test_a_word_of_a_sentence_leaves_the_words_around_it_as_they_are(chat: ChatFormat) -> None:
    for sentence in ("copy apples to the folder pears", "is there a note of the kettle and a lamp?"):
        assert chat.tokenizer.decode(chat.encode(sentence)) == sentence
    pieces = chat.tokenizer.tokenize("copy apples to the pears")
    assert pieces == [*chat.tokenizer.tokenize("copy apples"), " to the ", *chat.tokenizer.tokenize("pears")]


def test_weights_are_taken_over_into_a_wider_tokenizer(tmp_path: Path) -> None:
    small, wide = build_tokenizer(1400), build_tokenizer(1600)
    earlier, model = Qwen2ForCausalLM(tiny_config(small)), Qwen2ForCausalLM(tiny_config(wide))
    small.save_pretrained(tmp_path)
    take_over(model, earlier, wide, tmp_path)
    old, new = earlier.model.embed_tokens.weight, model.model.embed_tokens.weight
    known = small.get_vocab()
    fresh = {token: index for token, index in wide.get_vocab().items() if token not in known}
    assert fresh
    assert all(torch.equal(new[i], old[known[token]]) for token, i in wide.get_vocab().items() if token in known)
    index = next(iter(fresh.values()))
    parts = old[small.encode(wide.decode([index]))].mean(0)
    assert torch.cosine_similarity(new[index] - parts, parts, dim=0).abs() < 0.5
    assert torch.equal(model.lm_head.weight, new)
    assert torch.equal(model.model.layers[3].mlp.up_proj.weight, earlier.model.layers[3].mlp.up_proj.weight)


def test_the_processes_of_a_killed_command_end(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--batch", "2", "--conversations", "1", "--steps", "100000"]
    with subprocess.Popen([sys.executable, "-m", "mcp_rl.tiny.pretrain", *words], stderr=subprocess.DEVNULL) as command:
        process = psutil.Process(command.pid)
        until = time.monotonic() + 60
        while len(process.children()) < 3 and time.monotonic() < until:  # two that train, one that counts resources
            time.sleep(0.1)
        children = process.children()
        assert len(children) == 3
        command.kill()
    gone, alive = psutil.wait_procs(children, timeout=60)
    for child in alive:
        child.kill()
    assert len(gone) == 3


@pytest.mark.parametrize("option", ["--read", "--strange-letters"])
@pytest.mark.parametrize("value", ["2", "-0.1", "nan", "half"])
def test_a_share_is_a_number_from_0_to_1(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain", f"{option}={value}"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"'{value}' is no share: give a number from 0 to 1" in capsys.readouterr().err
