"""An engine whose turns a function writes."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mcp_rl.errors import ContextOverflow
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.scripted import ScriptedEngine

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    characters = [chr(i) for i in range(32, 127)] + ["\u2402", "\u2403", "\n"]
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = TEMPLATE
    return ChatFormat(fast, format="hermes")


def reply(text: str, seed: int, turn: int) -> str:
    if turn == 0:
        return "<tool_call>" + json.dumps({"name": "add", "arguments": {"a": seed}}) + "</tool_call>"
    return "done"


async def test_a_scripted_episode_has_real_ids_and_ends_its_turns(chat: ChatFormat) -> None:
    async with ScriptedEngine(reply, chat, version=3).episode(seed=7) as episode:
        first = await episode.generate(chat.initial([{"role": "user", "content": "hi"}], []), Sampling())
        second = await episode.generate(chat.continuation([{"role": "tool", "content": "7"}]), Sampling())
    assert first.token_ids[-1] in chat.stop_token_ids and first.finish == "stop"
    assert len(first.logprobs) == len(first.token_ids) and first.version == 3
    call = parse_completion("".join(chat.decode(first.token_ids).split(" "))).calls[0]
    assert call.name == "add" and call.arguments == {"a": 7}
    assert chat.decode(second.token_ids).replace(" ", "") == "done"


async def test_a_scripted_turn_is_cut_at_its_limit_and_at_the_context(chat: ChatFormat) -> None:
    engine = ScriptedEngine(lambda text, seed, turn: "abcdef", chat, max_context=10)
    async with engine.episode(seed=0) as episode:
        cut = await episode.generate(chat.encode("xyz"), Sampling(max_tokens=4))
        assert (len(cut.token_ids), cut.finish) == (4, "length")
        edge = await episode.generate(chat.encode("x"), Sampling(max_tokens=100))
        assert (len(edge.token_ids), edge.finish) == (2, "length")
        with pytest.raises(ContextOverflow):
            await episode.generate([], Sampling())


async def test_a_scripted_turn_takes_stop_texts_and_seeds(chat: ChatFormat) -> None:
    seeds: list[int] = []

    def say(text: str, seed: int, turn: int) -> str:
        seeds.append(seed)
        return "one two three"

    opening = chat.initial([{"role": "user", "content": "hi"}], [])
    async with ScriptedEngine(say, chat).episode(seed=7) as episode:
        cut = await episode.generate(opening, Sampling(stop=("e   t",), seed=3))
        whole = await episode.generate([], Sampling())
        by_id = await episode.generate([], Sampling(stop_token_ids=(cut.token_ids[2],)))
    assert (cut.token_ids, cut.finish) == (chat.encode("one t"), "stop")  # this tokenizer decodes with spaces between
    assert (whole.token_ids[:-1], whole.finish) == (chat.encode("one two three"), "stop")
    assert by_id.token_ids == chat.encode("one")
    assert seeds == [3, 7, 7]
