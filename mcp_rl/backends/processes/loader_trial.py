"""Time ways to compute a small model of a kind, loaded by one library, and print the results as JSON on the last line.

    python -m mcp_rl.backends.processes.loader_trial WORKLOAD WAYS

Both are JSON (`backends/plan/workload.py`), the ways by name. The model has random weights in the shape of the named
one, with few layers and words; nothing is downloaded but its config.json.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.base.first import import_first
from mcp_rl.backends.plan.workload import VOCABULARY, Way, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.learning.forward.choice import Trial
    from mcp_rl.learning.samples import Sample


def main(work: Workload, ways: Mapping[str, Way]) -> dict[str, dict[str, Any]]:
    """Return for each way the seconds of a pass forward and backward, the log-probabilities, and the reason if there
    are none. All ways load by the same library."""
    import_first(any(way.loader == "unsloth" for way in ways.values()))
    import torch

    torch.manual_seed(0)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        folder = _small_model(work, Path(place))
        for name, way in ways.items():
            trial = _timed(work, way, str(folder))
            found[name] = {"seconds": trial.seconds, "values": trial.values.tolist(), "failure": trial.failure}
    return found


def _timed(work: Workload, way: Way, folder: str) -> Trial:
    from mcp_rl.backends.base.base_model import make_learner, open_base
    from mcp_rl.backends.base.options import plan_loading
    from mcp_rl.config import TrainConfig, UnslothConfig
    from mcp_rl.learning.forward.choice import attempt
    from mcp_rl.learning.measure import forward_and_back, measure_forward, wait_for

    loading = UnslothConfig(
        use=way.loader == "unsloth",
        load_in_4bit=work.quantisation == "4-bit",
        load_in_8bit=work.quantisation == "8-bit",
        dtype=work.dtype,
        trust_remote_code=work.trust_remote_code,
    )
    config = TrainConfig(
        forward=way.forward,
        lora=work.lora,
        activation_checkpointing=work.checkpointing,
        microbatch_tokens=work.microbatch_tokens,
    )
    base = open_base(plan_loading(folder, loading, config, max_seq_length=work.shared + work.own))
    learner = make_learner(base.model, folder, config, plan=base.plan)
    batch = _group(work)
    if not learner.forward.decided:
        measure_forward(learner, batch)
    return attempt(forward_and_back(learner, batch), finish=wait_for(learner))


def _small_model(work: Workload, folder: Path) -> Path:
    """Write a model with random weights and the built-in model's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mcp_rl.backends.base.options import base_location
    from mcp_rl.tiny import weights_path

    where = {"revision": work.revision, "trust_remote_code": work.trust_remote_code}
    config: Any = AutoConfig.from_pretrained(base_location(work.base_model), **where)
    config = config.get_text_config()
    config.num_hidden_layers = min(work.layers, config.num_hidden_layers)
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = kinds[: config.num_hidden_layers]
    config.vocab_size = VOCABULARY
    config.bos_token_id = config.pad_token_id = None
    config.eos_token_id = 0
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, work.dtype))  # type: ignore[no-untyped-call]
    model.generation_config.pad_token_id = model.generation_config.bos_token_id = None
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(weights_path() / name, folder / name)
    return folder


def _group(work: Workload) -> list[Sample]:
    """Return episodes of random tokens that share their beginning."""
    import numpy as np

    from mcp_rl.learning.samples import Sample

    draw = np.random.default_rng(0)
    shared = draw.integers(0, VOCABULARY, work.shared)
    made = []
    for _ in range(work.rows):
        own = draw.integers(0, VOCABULARY, work.own)
        made.append(
            Sample(
                tokens=[int(token) for token in (*shared, *own[:-1])],
                at=np.arange(work.shared - 1, work.shared + work.own - 1),
                targets=own.astype(np.int64),
                logprobs=np.zeros(work.own, np.float32),
                weights=np.ones(work.own, np.float32),
                advantage=1.0,
                group=0,
            )
        )
    return made


if __name__ == "__main__":
    given = {name: Way.model_validate(way) for name, way in json.loads(sys.argv[2]).items()}
    print(json.dumps(main(Workload.model_validate_json(sys.argv[1]), given)), flush=True)
