"""TRL's `GRPOTrainer` with tools on the calculator, for `benchmarks/learning.py`; needs the `bench` extra.

    python -m benchmarks.trl_contender --tasks RUN_FOLDER --steps 8 [--target 0.7 --seconds 200]

The same base, LoRA, prompts, tools, rewards, group sizes and limits of an episode as in our run, and the settings with
which TRL is fastest on a CPU: the whole batch in one forward pass, no gradient checkpointing, no logs, no checkpoints,
the same token-level loss. JSON on stdout.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from benchmarks.calculator_tasks import ROLLOUT, Calls, Tasks, contender_parser, fresh_base, reward
from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import merged_weights

calls = Calls()
TIMES: Counter[str] = Counter()


def timed_call(name: str, **arguments: Any) -> str:
    began = time.perf_counter()
    try:
        return calls(name, arguments)
    finally:
        TIMES["tools"] += time.perf_counter() - began


# TRL makes schemas of signatures and docstrings, and calls these functions with the model's arguments.


def add(a: float, b: float) -> str:
    """Add two numbers: a + b.

    Args:
        a: The first.
        b: The second.
    """
    return timed_call("add", a=a, b=b)


def subtract(a: float, b: float) -> str:
    """Subtract b from a: a - b.

    Args:
        a: The first.
        b: The second.
    """
    return timed_call("subtract", a=a, b=b)


def multiply(a: float, b: float) -> str:
    """Multiply two numbers: a * b.

    Args:
        a: The first.
        b: The second.
    """
    return timed_call("multiply", a=a, b=b)


def divide(a: float, b: float) -> str:
    """Divide a by b: a / b.

    Args:
        a: The first.
        b: The second.
    """
    return timed_call("divide", a=a, b=b)


def power(base: float, exponent: float) -> str:
    """Raise base to exponent: base ** exponent.

    Args:
        base: The base.
        exponent: The exponent.
    """
    return timed_call("power", base=base, exponent=exponent)


def square_root(number: float) -> str:
    """Square root of a number.

    Args:
        number: The number.
    """
    return timed_call("square_root", number=number)


def evaluate(expression: str) -> str:
    """Evaluate an expression.

    Args:
        expression: For example (2 + 3) * 4.
    """
    return timed_call("evaluate", expression=expression)


class TimedTrainer(GRPOTrainer):
    """A trainer that measures the time of sampling, tools included."""

    def _generate(self, prompts: list[Any]) -> Any:
        began = time.perf_counter()
        try:
            return super()._generate(prompts)
        finally:
            TIMES["sampling"] += time.perf_counter() - began


class Watch(TrainerCallback):
    """Time each step, measure success between steps, and stop at the target or at the time limit."""

    def __init__(self, tasks: Tasks, options: argparse.Namespace) -> None:
        self.tasks, self.options = tasks, options
        self.model: Any = None
        self.steps: list[dict[str, float]] = []
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.steps or self._ended:
            self._ended = False
            TIMES.clear()
            self._began, self._cpu_began = time.perf_counter(), time.process_time()

    _ended = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        self._ended = True
        self.seconds += step
        sampling, tools = TIMES["sampling"] - TIMES["tools"], TIMES["tools"]
        self.steps.append(
            {
                "seconds": step,
                "cpu_seconds": cpu,
                "sampling": sampling,
                "tools": tools,
                "update": step - sampling - tools,
            }
        )
        every = self.options.evaluate_every
        if every and state.global_step % every == 0:
            success = self.tasks.success(merged_weights(self.model), state.global_step)
            self.curve.append({"step": state.global_step, "seconds": self.seconds, "success": success})
            print(self.curve[-1], file=sys.stderr, flush=True)
            if success >= self.options.target:
                control.should_training_stop = True
        if self.seconds >= self.options.seconds:
            control.should_training_stop = True


def literal_tools(template: str, tools: list[dict[str, Any]], render: Any) -> str:
    """Return the template with these tools instead of TRL's schemas of the functions, so that the prompt is ours."""
    loop = r"{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}"
    if loop not in template:
        raise ValueError("the chat template lists its tools in another way than this benchmark knows")
    messages = [{"role": "user", "content": "x"}]
    text = render(messages, tools=tools, tokenize=False)
    listed = text.partition("<tools>\n")[2].partition("\n</tools>")[0]
    return template.replace(loop, r"{{- '\n' }}{% raw %}" + listed + "{% endraw %}")


def train(tasks: Tasks, options: argparse.Namespace, folder: str) -> Watch:
    tokenizer, lora, ours = tasks.tokenizer, TrainConfig().lora, TrainConfig()
    tokenizer.chat_template = literal_tools(tokenizer.chat_template, tasks.tools, tokenizer.apply_chat_template)
    tokenizer.response_template = qwen3_template
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = [
        {"prompt": [{"role": "user", "content": scenario.task_description}], "number": number}
        for number, scenario in enumerate(tasks.train)
    ]
    episodes = options.groups * options.size

    def score(completions: list[Any], number: list[int], **_: Any) -> list[float]:
        return [reward(tasks.train[i], said, calls.errors) for i, said in zip(number, completions, strict=True)]

    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=episodes // options.micro,
        gradient_accumulation_steps=options.micro,
        generation_batch_size=episodes,
        num_generations=options.size,
        num_iterations=options.iterations,
        max_steps=options.steps * options.iterations,
        max_completion_length=ROLLOUT.max_tokens,
        generation_kwargs={"max_new_tokens": ROLLOUT.max_turn_tokens},
        max_tool_calling_iterations=ROLLOUT.max_turns - 1,
        temperature=1.0,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        max_grad_norm=ours.max_grad_norm,
        weight_decay=0.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=options.seed,
        **options.extra,
    )
    watch = Watch(tasks, options)
    trainer = TimedTrainer(
        model=fresh_base(),
        reward_funcs=score,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[add, divide, evaluate, multiply, power, square_root, subtract],
        peft_config=LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=list(lora.targets),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        ),
        callbacks=[watch],
    )
    watch.model = trainer.model
    given, _, _ = trainer._tokenize_prompts([rows[0]["prompt"]])
    if list(given[0]) != tasks.prompt(tasks.train[0]):
        raise ValueError("TRL's prompt is not ours")
    trainer.train()
    return watch


def main() -> None:
    parser = contender_parser(__doc__)
    parser.add_argument("--micro", type=int, default=1, help="parts that a batch is cut into for the update")
    parser.add_argument("--iterations", type=int, default=1, help="updates with each batch")
    parser.add_argument("--extra", type=json.loads, default={}, help="further settings of GRPOConfig, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr), Tasks(options.tasks) as tasks, tempfile.TemporaryDirectory() as folder:
        watch = train(tasks, options, folder)
    json.dump({"steps": watch.steps, "curve": watch.curve, "seconds": watch.seconds}, sys.stdout)


if __name__ == "__main__":
    main()
