"""The update of one loader in its own process, since Unsloth must be imported before transformers.

    python -m benchmarks.gpu_check.loader_side '{"loader": "unsloth", "forward": "auto", "folder": …, "out": …, …}'

Writes the adapter's gradients to `out` and prints the figures as JSON on the last line.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main(given: dict[str, Any]) -> dict[str, Any]:
    from mcp_rl.backends.base.first import import_first

    import_first(given["loader"] == "unsloth")

    import torch
    from safetensors.torch import save_file

    from benchmarks.gpu_check.measure import backward, timed_update
    from benchmarks.gpu_check.models import move_adapter, samples
    from benchmarks.gpu_check.setting import Shape
    from mcp_rl.backends.base.base_model import make_learner, open_base
    from mcp_rl.backends.base.options import plan_loading
    from mcp_rl.config import TrainConfig, UnslothConfig
    from mcp_rl.learning.measure import measure_forward

    options = UnslothConfig(use=given["loader"] == "unsloth", load_in_4bit=False, dtype=given["dtype"])
    config = TrainConfig.model_validate(
        {
            "forward": given["forward"],
            "microbatch_tokens": given["budget"],
            "activation_checkpointing": given["checkpointing"],
            "epochs": 1,
        }
    )
    base_folder, context = given["folder"], int(given["prompt"]) + int(given["answer"])
    plan = plan_loading(base_folder, options, config, max_seq_length=context)
    base = open_base(plan)
    learner = make_learner(base.model, base_folder, config, plan=base.plan)
    move_adapter(learner.parameters)
    shape = Shape(**given["shape"])
    batch = samples(shape.vocabulary, groups=1, size=8, prompt=given["prompt"], answer=given["answer"])
    choice = None if learner.forward.decided else asdict(measure_forward(learner, batch))
    loss = backward(learner, batch)["loss"]
    kept = {name: p.grad.float().cpu().contiguous() for name, p in learner.parameters.items() if p.grad is not None}
    save_file(kept, Path(given["out"]))
    learner.optimizer.zero_grad()
    figures = timed_update(learner, shape, batch)
    return {
        "loss": loss,
        "parameters": len(learner.parameters),
        "with_gradient": len(kept),
        "forward": learner.forward.kind,
        "choice": choice,
        "loaded": base.loaded,
        "torch_memory_gb": torch.cuda.memory_reserved() / 1e9 if torch.cuda.is_available() else None,
        **figures,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
