"""The in-process engine: logprobs, batches, policies, limits and failures."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from mcp_rl.errors import ContextOverflow, EngineError
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.low_rank import LowRank, low_rank_weights
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning.adapter import merged_weights
from tests.inference.models import DEVICES, STOP, VOCABULARY, plain_logprobs, prompt, tiny_model


@dataclass
class Played:
    """A played episode: its ids, and the place and logprob of each sampled one."""

    ids: list[int] = field(default_factory=list)
    logprobs: dict[int, float] = field(default_factory=dict)
    turns: list[Completion] = field(default_factory=list)


async def play(
    engine: LocalEngine,
    seed: int,
    given: list[list[int]],
    sampling: Sampling,
    between: Callable[[int], float] = lambda turn: 0.0,
) -> Played:
    played = Played()
    async with engine.episode(seed=seed) as episode:
        for turn, new in enumerate(given):
            await anyio.sleep(between(turn))
            completion = await episode.generate(new, sampling)
            start = len(played.ids) + len(new)
            played.ids += [*new, *completion.token_ids]
            played.logprobs |= {start + i: logprob for i, logprob in enumerate(completion.logprobs)}
            played.turns.append(completion)
    return played


async def play_all(
    engine: LocalEngine, episodes: dict[int, list[list[int]]], sampling: Sampling, **kwargs: Callable[[int], float]
) -> dict[int, Played]:
    played: dict[int, Played] = {}

    async def one(seed: int) -> None:
        played[seed] = await play(engine, seed, episodes[seed], sampling, **kwargs)

    async with anyio.create_task_group() as group:
        for seed in episodes:
            group.start_soon(one, seed)
    return played


def mixed_episodes(count: int) -> dict[int, list[list[int]]]:
    """Two system prompts and none, groups that share a request, one to three turns of different lengths."""
    episodes = {}
    for seed in range(count):
        opening = prompt(trunk=seed % 5 // 2, request=seed // 4, length=3 + seed // 4 % 6)
        opening = opening[-4:] if seed % 7 == 6 else opening
        episodes[seed] = [opening, *([seed % 90, 5, 7][: 1 + seed % 3] for _ in range(seed % 3))]
    return episodes


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("device", DEVICES)
async def test_logprobs_equal_those_of_a_plain_forward_pass(kind: str, temperature: float, device: str) -> None:
    model = tiny_model(kind).to(device)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        played = await play_all(engine, mixed_episodes(40), Sampling(temperature=temperature, max_tokens=12))
    assert {c.finish for p in played.values() for c in p.turns} == {"stop", "length"}
    for episode in played.values():
        reference = plain_logprobs(model, episode.ids, temperature)
        for place, logprob in episode.logprobs.items():
            assert logprob == pytest.approx(reference[place - 1].item(), abs=1e-5)


async def test_greedy_is_what_transformers_generates() -> None:
    model = tiny_model()
    prompts = {seed: [prompt(request=seed, length=2 + seed)] for seed in range(9)}
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        played = await play_all(engine, prompts, Sampling(temperature=0, max_tokens=10))
    for seed, given in prompts.items():
        ids = torch.tensor(given)
        expected = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=STOP, pad_token_id=STOP)
        assert played[seed].ids == expected[0].tolist()
        reference = plain_logprobs(model, played[seed].ids)
        assert all(lp == pytest.approx(reference[i - 1].item(), abs=1e-5) for i, lp in played[seed].logprobs.items())


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
async def test_an_episode_is_independent_of_the_batch(kind: str) -> None:
    model, episodes, sampling = tiny_model(kind), mixed_episodes(40), Sampling(max_tokens=12)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        if engine.gang:
            pytest.skip("results depend on the batch on this machine, and the engine has found that out")
        together = await play_all(engine, episodes, sampling, between=lambda turn: 0.003 * turn)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        for seed in [0, 1, 2, 6, 17, 31, 39]:
            assert (await play(engine, seed, episodes[seed], sampling)) == together[seed]


async def test_a_gang_is_independent_of_the_speed_of_tools() -> None:
    model, episodes, sampling = tiny_model(), mixed_episodes(12), Sampling(max_tokens=8)
    results = []
    for pause in (0.0, 0.02):
        async with LocalEngine(model, stop_token_ids=[STOP], gang=True, admission_wait=20) as engine:
            results.append(await play_all(engine, episodes, sampling, between=lambda turn, p=pause: p * turn))
            assert engine.stats.waves == 3
    assert results[0] == results[1]


async def test_a_gang_does_not_wait_for_ever_for_a_slow_tool() -> None:
    engine = LocalEngine(tiny_model(), stop_token_ids=[STOP], gang=True, admission_wait=0.05)
    async with engine, engine.episode(seed=1):
        with anyio.fail_after(10):
            await play(engine, 2, [prompt()], Sampling(max_tokens=3))


async def test_seeds_decide_what_is_drawn() -> None:
    same = {seed: [prompt()] for seed in range(60)}
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP]) as engine:
        first = await play_all(engine, same, Sampling(max_tokens=6))
        again = await play_all(engine, same, Sampling(max_tokens=6))
    assert first == again
    assert len({tuple(p.ids) for p in first.values()}) > 20


async def test_tokens_are_drawn_by_their_probability() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    opening = prompt()
    count = 2000
    async with LocalEngine(model, stop_token_ids=[STOP], max_rows=1000) as engine:
        played = await play_all(engine, {seed: [opening] for seed in range(count)}, Sampling(max_tokens=1))
        with torch.no_grad():
            expected = model(torch.tensor([opening])).logits[0, -1].softmax(-1)
    drawn = torch.bincount(torch.tensor([p.ids[-1] for p in played.values()]), minlength=VOCABULARY) / count
    assert expected.max() < 0.9
    deviation = (drawn - expected).abs() / (expected * (1 - expected) / count).sqrt().clamp_min(1 / count)
    assert deviation.max() < 5


async def test_a_shared_beginning_is_forwarded_once() -> None:
    first, second = prompt(request=1, length=6), prompt(request=2, length=9)
    trunk = first.index(STOP) + 1
    episodes = {seed: [first if seed < 5 else second, [3, 4, 5]] for seed in range(10)}
    async with LocalEngine(tiny_model(), stop_token_ids=[]) as engine:
        await play_all(engine, episodes, Sampling(max_tokens=4))
        assert engine.stats.prefill_tokens == len(first) + len(second) + 10 * (3 + 1)
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP]) as engine:
        await play_all(engine, {seed: given[:1] for seed, given in episodes.items()}, Sampling(max_tokens=1))
        assert engine.stats.prefill_tokens == trunk + 6 + 9
        assert engine.stats.cached_tokens == 10 * trunk + 5 * 6 + 5 * 9 - engine.stats.prefill_tokens
        assert engine.stats.copied_tokens == engine.stats.cached_tokens
        before = engine.stats.prefill_tokens
        await play(engine, 77, [first], Sampling(max_tokens=1))
        assert engine.stats.prefill_tokens == before + 1


async def test_long_prompts_are_forwarded_in_chunks() -> None:
    model = tiny_model(window=2048)
    long = torch.randint(0, STOP, (1300,), generator=torch.Generator().manual_seed(3)).tolist()
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        played = await play_all(engine, {0: [long], 1: [long[:40]], 2: [[*long[:700], STOP, *long]]}, Sampling())
    for episode in played.values():
        reference = plain_logprobs(model, episode.ids)
        assert all(lp == pytest.approx(reference[i - 1].item(), abs=1e-5) for i, lp in episode.logprobs.items())


async def test_more_episodes_than_rows_give_the_same_results() -> None:
    episodes = mixed_episodes(23)
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP], max_rows=4, gang=False) as engine:
        few = await play_all(engine, episodes, Sampling(max_tokens=6))
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP], gang=False) as engine:
        many = await play_all(engine, episodes, Sampling(max_tokens=6))
    assert {seed: p.ids for seed, p in few.items()} == {seed: p.ids for seed, p in many.items()}


async def test_a_new_policy_is_sampled_without_old_keys() -> None:
    model, other = tiny_model(seed=0), tiny_model(seed=1)
    weights = {name: p.detach().clone() for name, p in other.named_parameters()}
    attention = {name: w for name, w in weights.items() if "_proj.weight" in name}
    opening = prompt()
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine, engine.episode(seed=5) as episode:
        base = engine.fingerprint
        first = await episode.generate(opening, Sampling(max_tokens=6))
        await engine.load_policy(weights, 7)
        assert (engine.version, engine.fingerprint) == (7, fingerprint_of(weights))
        second = await episode.generate([1, 2], Sampling(max_tokens=6))
        ids = [*opening, *first.token_ids, 1, 2, *second.token_ids]
        reference = plain_logprobs(other, ids)[-len(second.token_ids) :]
        assert (first.version, second.version) == (0, 7)
        assert second.logprobs == pytest.approx(reference.tolist(), abs=1e-5)
        await engine.load_policy(attention, 8)
        partly = await play(engine, 5, [opening], Sampling(max_tokens=6))
        await engine.load_policy({}, 9)
        assert engine.fingerprint == base
        back = await play(engine, 5, [opening], Sampling(max_tokens=6))
    assert back.turns[0].logprobs == first.logprobs
    mixture = tiny_model(seed=0)
    mixture.load_state_dict(attention, strict=False)
    assert partly.turns[0].logprobs == pytest.approx(plain_logprobs(mixture, partly.ids)[-6:].tolist(), abs=1e-5)


@pytest.mark.parametrize("engine_first", [True, False])
async def test_merged_lora_weights_are_sampled(engine_first: bool) -> None:
    model = tiny_model()
    opening = prompt()
    engine = LocalEngine(model, stop_token_ids=[STOP])
    before = plain_logprobs(model, opening)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    engine = engine if engine_first else LocalEngine(adapted, stop_token_ids=[STOP])
    async with engine:
        base = await play(engine, 1, [opening], Sampling(max_tokens=5))
        await engine.load_policy(merged_weights(adapted), 1)
        trained = await play(engine, 1, [opening], Sampling(max_tokens=5))
    with adapted.disable_adapter():
        assert torch.equal(plain_logprobs(adapted, opening), before)
        assert base.turns[0].logprobs == pytest.approx(plain_logprobs(adapted, base.ids)[-5:].tolist(), abs=1e-5)
    assert trained.turns[0].logprobs == pytest.approx(plain_logprobs(adapted, trained.ids)[-5:].tolist(), abs=1e-5)
    assert trained.turns[0].logprobs != base.turns[0].logprobs


def adapt(model: PreTrainedModel, *, std: float = 0.1) -> PeftModel:
    lora = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    return adapted


@pytest.mark.parametrize("device", DEVICES)
async def test_an_unmerged_adapter_gives_what_merging_gives(device: str) -> None:
    model, opening = tiny_model().to(device), prompt()
    engine = LocalEngine(model, stop_token_ids=[STOP])
    adapted = adapt(model)
    low_rank, merged = low_rank_weights(adapted), merged_weights(adapted)
    assert set(low_rank) == set(merged)
    async with engine:
        base = await play(engine, 1, [opening], Sampling(max_tokens=6))
        await engine.load_policy(low_rank, 1)
        assert engine.fingerprint == fingerprint_of(low_rank) != fingerprint_of(merged)
        trained = await play(engine, 1, [opening], Sampling(max_tokens=6))
        assert trained.turns[0].version == 1
        await engine.load_policy(merged, 2)
        assert engine.fingerprint == fingerprint_of(merged)
        again = await play(engine, 1, [opening], Sampling(max_tokens=6))
        assert again.turns[0].logprobs == pytest.approx(trained.turns[0].logprobs, abs=1e-5)
        await engine.load_policy({}, 3)
        assert (await play(engine, 1, [opening], Sampling(max_tokens=6))).turns[0].logprobs == base.turns[0].logprobs
    assert trained.turns[0].logprobs == pytest.approx(plain_logprobs(adapted, trained.ids)[-6:].tolist(), abs=1e-5)
    assert trained.turns[0].logprobs != base.turns[0].logprobs


async def test_an_unmerged_adapter_copies_a_and_b_alone() -> None:
    model = tiny_model()
    engine = LocalEngine(model, stop_token_ids=[STOP])
    low_rank = low_rank_weights(adapt(model))
    async with engine:
        await engine.load_policy(low_rank, 1)
        for name, weight in low_rank.items():
            layer = engine._policy.model.get_submodule(name.removesuffix(".weight"))
            assert layer.weight.data_ptr() == model.get_submodule(name.removesuffix(".weight")).weight.data_ptr()
            assert layer.delta.a.data_ptr() != weight.a.data_ptr()
            weight.a.zero_()  # as the learner moves on; the sampled weights stay
        assert engine.fingerprint != fingerprint_of(low_rank)
        bad = {name: LowRank(weight.a[:, 1:], weight.b, 1.0) for name, weight in low_rank.items()}
        with pytest.raises(EngineError, match="has shape"):
            await engine.load_policy(bad, 2)
        with pytest.raises(EngineError, match="plain linear layer"):
            await engine.load_policy({"model.embed_tokens.weight": next(iter(low_rank.values()))}, 2)
        assert engine.version == 1


async def test_an_update_that_bfloat16_would_round_away_is_sampled() -> None:
    """The learner keeps float32 factors next to bfloat16 weights. Merged, the update below changes nearly nothing."""
    model = tiny_model().to(torch.bfloat16)
    engine = LocalEngine(model, stop_token_ids=[STOP])
    adapted = adapt(model, std=2e-4)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    low_rank, merged = low_rank_weights(adapted), merged_weights(adapted)
    bases = {name: model.get_parameter(name.replace(".weight", ".base_layer.weight")) for name in merged}
    changed = [float((merged[name].to(torch.bfloat16) != bases[name]).float().mean()) for name in merged]
    assert max(changed) < 0.3
    async with engine:
        await engine.load_policy(low_rank, 1)
        for name, weight in low_rank.items():
            layer = engine._policy.model.get_submodule(name.removesuffix(".weight"))
            x = torch.randn(64, weight.a.shape[1], dtype=torch.bfloat16)
            exact = x.float() @ (layer.weight.float() + weight.scale * weight.b @ weight.a).T
            if layer.bias is not None:
                exact = exact + layer.bias.float()
            plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
            assert (layer(x) - exact).abs().mean() <= (plain - exact).abs().mean()
            peft = adapted.get_base_model().get_submodule(name.removesuffix(".weight"))
            assert torch.equal(layer(x), peft(x))


@pytest.mark.parametrize("kind", ["qwen2"])
async def test_with_an_adapter_episodes_are_independent_of_the_batch(kind: str) -> None:
    model, episodes, sampling = tiny_model(kind), mixed_episodes(20), Sampling(max_tokens=8)
    low_rank = low_rank_weights(adapt(model))
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        await engine.load_policy(low_rank, 1)
        if engine.gang:
            pytest.skip("results depend on the batch on this machine, and the engine has found that out")
        together = await play_all(engine, episodes, sampling)
        await engine.load_policy(low_rank, 1)
        for seed in [0, 6, 17]:
            assert (await play(engine, seed, episodes[seed], sampling)) == together[seed]


@pytest.mark.parametrize("device", DEVICES)
async def test_bfloat16_is_sampled_too(device: str) -> None:
    model = tiny_model().to(device, torch.bfloat16)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        played = await play_all(engine, mixed_episodes(10), Sampling(max_tokens=4))
    off = []
    for episode in played.values():
        reference = plain_logprobs(model, episode.ids)
        off += [abs(logprob - reference[place - 1].item()) for place, logprob in episode.logprobs.items()]
    assert sum(off) / len(off) < 0.1


async def test_turns_join_a_batch_that_is_running() -> None:
    engine = LocalEngine(tiny_model(window=2000), stop_token_ids=[], gang=False)
    async with engine, anyio.create_task_group() as group:
        group.start_soon(play, engine, 1, [prompt()], Sampling(max_tokens=1500))
        await anyio.sleep(0.05)
        with anyio.fail_after(20):
            await play(engine, 2, [prompt()], Sampling(max_tokens=3))
        assert 0 < engine.stats.steps < 1000
        group.cancel_scope.cancel()


async def test_an_open_engine_makes_threads_take_turns_often() -> None:
    before = sys.getswitchinterval()
    try:
        async with LocalEngine(tiny_model(), stop_token_ids=[]):
            assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before)


async def test_a_turn_ends_under_the_policy_it_began_with() -> None:
    model, other = tiny_model(seed=0), tiny_model(seed=1)
    weights = {name: p.detach() for name, p in other.named_parameters()}
    async with LocalEngine(model, stop_token_ids=[]) as engine:
        alone = await play(engine, 1, [prompt()], Sampling(max_tokens=150))
        async with anyio.create_task_group() as group:
            running: list[Played] = []

            async def one() -> None:
                running.append(await play(engine, 1, [prompt()], Sampling(max_tokens=150)))

            group.start_soon(one)
            steps = engine.stats.steps
            while engine.stats.steps < steps + 5:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            await engine.load_policy(weights, 3)
        assert running[0] == alone and running[0].turns[0].version == 0
        assert engine.version == 3


async def test_weights_that_do_not_fit_change_nothing() -> None:
    model = tiny_model()
    name = "model.layers.0.self_attn.q_proj.weight"
    good = model.get_parameter(name).detach()
    bad = [{"nonsense": good}, {name: good[:, :5]}, {name: good * torch.nan}]
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        before = await play(engine, 1, [prompt()], Sampling(max_tokens=4))
        for weights in bad:
            with pytest.raises(EngineError, match="Policy version 2"):
                await engine.load_policy(weights, 2)
        assert engine.version == 0
        assert await play(engine, 1, [prompt()], Sampling(max_tokens=4)) == before


async def test_the_given_model_is_shared_and_unchanged() -> None:
    model = tiny_model()
    implementation = model.config._attn_implementation
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        await play(engine, 1, [prompt()], Sampling(max_tokens=4))
        sampled = dict(engine._policy.model.named_parameters())
    assert model.config._attn_implementation == implementation
    assert all(sampled[name] is parameter for name, parameter in model.named_parameters())


async def test_turns_are_refused_or_cut_at_the_end_of_the_context() -> None:
    opening = prompt()
    async with LocalEngine(tiny_model(), stop_token_ids=[], max_context=len(opening) + 10) as engine:
        assert engine.max_context == len(opening) + 10
        async with engine.episode(seed=0) as episode:
            assert len((await episode.generate(opening, Sampling(max_tokens=4))).token_ids) == 4
            with pytest.raises(ContextOverflow):
                await episode.generate([1] * 6, Sampling())
            cut = await episode.generate([1] * 5, Sampling(max_tokens=9))
            assert (len(cut.token_ids), cut.finish) == (1, "length")
            with pytest.raises(ContextOverflow):
                await episode.generate([], Sampling())


async def test_a_cancelled_turn_frees_its_row_and_disturbs_nobody() -> None:
    async with LocalEngine(tiny_model(window=20_000), stop_token_ids=[], max_rows=2) as engine:
        alone = await play(engine, 2, [prompt()], Sampling(max_tokens=40))
        async with anyio.create_task_group() as group:
            group.start_soon(play, engine, 3, [prompt(), [1]], Sampling(max_tokens=60))
            with anyio.move_on_after(0.02) as scope:
                await play(engine, 1, [prompt()], Sampling(max_tokens=10_000))
        assert scope.cancelled_caught
        with anyio.fail_after(10):
            await play_all(engine, {seed: [prompt()] for seed in range(4)}, Sampling(max_tokens=5))
            assert await play(engine, 2, [prompt()], Sampling(max_tokens=40)) == alone


async def test_closing_the_engine_answers_the_turns_that_wait() -> None:
    failures: list[EngineError] = []

    async def doomed(engine: LocalEngine) -> None:
        try:
            await play(engine, 1, [prompt()], Sampling(max_tokens=10_000))
        except EngineError as error:
            failures.append(error)

    engine = LocalEngine(tiny_model(window=20_000), stop_token_ids=[])
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group, engine:
            for _ in range(3):
                group.start_soon(doomed, engine)
            await anyio.sleep(0.05)
    assert len(failures) == 3 and "closed" in str(failures[0])
    with pytest.raises(EngineError, match="closed"):
        await play(engine, 1, [prompt()], Sampling())
    with pytest.raises(EngineError, match="only once"):
        async with engine:
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_turns_are_answered_after_the_engines_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rows: object) -> None:
        raise SystemExit

    async with LocalEngine(tiny_model(), stop_token_ids=[STOP]) as engine:
        monkeypatch.setattr(engine._batch, "start", fails)
        for _ in range(2):
            async with engine.episode(seed=1) as episode:
                with anyio.fail_after(10), pytest.raises(EngineError, match="thread ended: SystemExit"):
                    await episode.generate(prompt(), Sampling(max_tokens=4))


async def test_turns_that_end_together_wake_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, woken = asyncio.get_running_loop(), 0
    wake = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
        nonlocal woken
        woken += 1
        return wake(*args, **kwargs)

    async with LocalEngine(tiny_model(), stop_token_ids=[]) as engine:
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await play_all(engine, {seed: [prompt(request=seed)] for seed in range(64)}, Sampling(max_tokens=4))
        assert engine.stats.waves == 1
        assert 0 < woken < 16


async def test_a_failed_turn_leaves_the_engine_usable() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP]) as engine:
        before = await play(engine, 1, [prompt()], Sampling(max_tokens=4))
        async with engine.episode(seed=9) as broken:
            with anyio.fail_after(10), pytest.raises(EngineError, match="Sampling failed"):
                await broken.generate([VOCABULARY + 5], Sampling())
            with pytest.raises(EngineError, match="cannot go on"):
                await broken.generate([1], Sampling())
        assert await play(engine, 1, [prompt()], Sampling(max_tokens=4)) == before


async def test_the_event_loop_stays_live_while_the_engine_samples() -> None:
    beats = 0

    async def heartbeat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.001)
            beats += 1

    async with LocalEngine(tiny_model(), stop_token_ids=[]) as engine, anyio.create_task_group() as group:
        group.start_soon(heartbeat)
        for seed in range(10):
            await play(engine, seed, [prompt()], Sampling(max_tokens=200))
        group.cancel_scope.cancel()
    assert beats > 10
