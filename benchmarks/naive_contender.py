"""A training loop written by hand on the calculator, for `benchmarks/learning.py`.

    python -m benchmarks.naive_contender --tasks RUN_FOLDER --steps 8 [--target 0.7 --seconds 200]

All episodes of a batch sample together with transformers' `generate`, turn by turn, with their calls in between; groups
whose rewards are all alike are left out; one update of padded rows with PEFT's own layers. Prompts, limits, tools,
rewards and loss are those of our run. JSON on stdout.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from benchmarks.calculator_tasks import ROLLOUT, Calls, Tasks, contender_parser, fresh_base, reward
from benchmarks.learning_update import padded_loss
from mcp_rl.config import TrainConfig
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.learning.adapter import add_adapter, merged_weights
from mcp_rl.learning.advantage import advantages
from mcp_rl.learning.samples import Sample
from mcp_rl.scenario import McpScenario

TIMES: Counter[str] = Counter()


@dataclass
class Episode:
    scenario: McpScenario
    tokens: list[int]
    sampled: list[bool]
    messages: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False


class Loop:
    """A policy and its optimiser."""

    def __init__(self, tasks: Tasks, options: argparse.Namespace) -> None:
        self.tasks, self.options, self.calls = tasks, options, Calls()
        config = TrainConfig()
        lora = config.lora
        self.model = add_adapter(
            fresh_base(), rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="tiny", seed=options.seed
        )
        for module in self.model.modules():
            module.__dict__.pop("forward", None)  # back to PEFT's layers
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=options.learning_rate, weight_decay=0.0, fused=True)
        self.stop = tasks.chat.stop_token_ids[0]

    def step(self, scenarios: Sequence[McpScenario]) -> None:
        began = time.perf_counter()
        episodes = [self._episode(scenario) for scenario in scenarios for _ in range(self.options.size)]
        for turn in range(ROLLOUT.max_turns):
            open_ones = [episode for episode in episodes if not episode.done]
            if open_ones:
                self._turn(open_ones, last=turn == ROLLOUT.max_turns - 1)
        TIMES["sampling"] += time.perf_counter() - began
        rewards = [reward(episode.scenario, episode.messages, self.calls.errors) for episode in episodes]
        self._update(episodes, rewards)

    def _episode(self, scenario: McpScenario) -> Episode:
        prompt = self.tasks.prompt(scenario)
        return Episode(scenario, prompt, [False] * len(prompt))

    @torch.no_grad()
    def _turn(self, episodes: Sequence[Episode], *, last: bool) -> None:
        width = max(len(episode.tokens) for episode in episodes)
        ids = torch.tensor([[self.stop] * (width - len(e.tokens)) + e.tokens for e in episodes])
        mask = torch.tensor([[0] * (width - len(e.tokens)) + [1] * len(e.tokens) for e in episodes])
        out = cast(Any, self.model).generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=ROLLOUT.max_turn_tokens,
            eos_token_id=self.stop,
            pad_token_id=self.stop,
        )
        for episode, row in zip(episodes, out[:, width:].tolist(), strict=True):
            said = row[: row.index(self.stop) + 1] if self.stop in row else row
            episode.tokens += said
            episode.sampled += [True] * len(said)
            parsed = parse_completion(self.tasks.chat.decode(said))
            message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
            episode.messages.append(message | ({"tool_calls": parsed.calls} if parsed.calls else {}))
            episode.done = not parsed.calls or last or said[-1] != self.stop
            if not episode.done:
                results = [self._call(call) for call in parsed.calls]
                new = self.tasks.chat.continuation(results)
                episode.messages += results
                episode.tokens += new
                episode.sampled += [False] * len(new)

    def _call(self, call: Any) -> dict[str, Any]:
        if call.arguments is None:
            self.calls.errors.add(call.error)
            return {"role": "tool", "name": call.name, "content": call.error}
        return {"role": "tool", "name": call.name, "content": self.calls(call.name, call.arguments)}

    def _update(self, episodes: Sequence[Episode], rewards: Sequence[float]) -> None:
        samples = []
        for start in range(0, len(episodes), self.options.size):
            group = slice(start, start + self.options.size)
            if len(set(rewards[group])) > 1:
                gains = advantages(rewards[group], scale_by_std=True, leave_one_out=False)
                samples += [_sample(*pair) for pair in zip(episodes[group], gains, strict=True)]
        total = sum(len(sample.targets) for sample in samples)
        samples.sort(key=lambda sample: len(sample.tokens))
        for start in range(0, len(samples), 16):
            (padded_loss(self.model, samples[start : start + 16]) / total).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _sample(episode: Episode, gain: float) -> Sample:
    where = np.flatnonzero(episode.sampled)
    tokens = np.asarray(episode.tokens, np.int64)
    return Sample(
        tokens=episode.tokens[: int(where[-1])],
        at=where - 1,
        targets=tokens[where],
        logprobs=np.full(len(where), np.nan, np.float32),  # with one update per batch the ratio is 1
        weights=np.ones(len(where), np.float32),
        advantage=float(gain),
        group=0,
    )


def main() -> None:
    options = contender_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    draw = random.Random(options.seed)
    steps: list[dict[str, float]] = []
    curve: list[dict[str, float]] = []
    total = 0.0
    with redirect_stdout(sys.stderr), Tasks(options.tasks) as tasks:
        loop = Loop(tasks, options)
        for step in range(1, options.steps + 1):
            TIMES.clear()
            began, cpu = time.perf_counter(), time.process_time()
            loop.step(draw.sample(tasks.train, options.groups))
            seconds = time.perf_counter() - began
            total += seconds
            times = {"seconds": seconds, "cpu_seconds": time.process_time() - cpu, "sampling": TIMES["sampling"]}
            steps.append({**times, "update": seconds - TIMES["sampling"]})
            if options.evaluate_every and step % options.evaluate_every == 0:
                success = tasks.success(merged_weights(loop.model), step)
                curve.append({"step": step, "seconds": total, "success": success})
                print(curve[-1], file=sys.stderr, flush=True)
                if success >= options.target:
                    break
            if total >= options.seconds:
                break
    json.dump({"steps": steps, "curve": curve, "seconds": total}, sys.stdout)


if __name__ == "__main__":
    main()
