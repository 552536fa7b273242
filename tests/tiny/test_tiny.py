"""The pretraining command makes the built-in model's files, and its corpus is encoded like rollouts."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.tiny import weights_path
from mcp_rl.tiny.corpus import conversation
from mcp_rl.tiny.mixture import toolset_and_conversations
from mcp_rl.tiny.pretrain import Packer, collate, logits_and_targets
from mcp_rl.tiny.tokenizer import build_tokenizer
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


def test_a_packed_conversation_is_token_for_token_a_rollout(chat: ChatFormat) -> None:
    packer, seed = Packer(chat, 3, 4), random.Random(3)
    tools, conversations = toolset_and_conversations(seed, 4)
    packed = packer.draw()
    for turns, (ids, _) in zip(conversations, packed.branches, strict=True):
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


def test_weights_are_about_a_million_parameters() -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path())
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.2e6
