"""Write a run to export, without training it."""

from pathlib import Path
from typing import Any

import torch

from mcp_rl.config import TINY, TrainConfig
from mcp_rl.config.identity import RunIdentity
from mcp_rl.evaluation.evaluate import EvaluationResult
from mcp_rl.run_directory import RunDirectory, RunState
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall
from mcp_rl.tiny import weights_path


def evaluated(step: int, success: float) -> dict[str, Any]:
    """Return an evaluation of 40 scenarios as a run stores it."""
    by_tool = {"add": {"scenarios": 40.0, "success": success, "low": success - 0.1, "high": success + 0.05}}
    measure = {"rollouts": 40, "success": success, "ci95": (success - 0.125, success + 0.0625), "reward": success,
               "turns": 2.0, "sampled_tokens": 20.0, "faults": 0, "stop_reasons": {"answered": 40}}  # fmt: skip
    found = EvaluationResult.model_validate(
        {"step": step, "scenarios": 40, "greedy": measure, "sampled": None, "by_tool": by_tool, "outcomes": {}}
    )
    return found.model_dump(mode="json")


def write_run(folder: Path, method: str, base_model: str = TINY) -> Path:
    """Write a run of one server after two steps, with slightly moved weights; step 1 was kept but not evaluated."""
    from mcp_rl.backends.base.base_model import load_learner, load_tokenizer
    from mcp_rl.learning.disk.state import ModelCard, save_learner, tokenizer_files

    config = TrainConfig.model_validate({"method": method, "lora": {"rank": 4, "alpha": 8}})
    learner = load_learner(base_model, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            if method == "full" or "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=2e-3)
    run = RunDirectory(folder)
    files = tokenizer_files(load_tokenizer(base_model))
    for step in (1, 2):
        learner.step = step
        base_name = str(weights_path()) if base_model == TINY else base_model
        save_learner(run.checkpoints, learner, files, ModelCard("t", base_name))
    identity = RunIdentity(
        server="mcp_calculator", base_model=base_model, seed=7, schema_hash="feedbeef", scenarios_hash="explored",
        settings={"train.method": method, "evaluation.greedy": True},
    )  # fmt: skip
    run.begin(identity, {"name": folder.name, "project": "default", "base_model": base_model})
    run.save_state(RunState(step=2, before=evaluated(0, 0.25), after=evaluated(2, 0.875), after_step=2))
    scenario = McpScenario(
        task_description="Add.", server_params=StdioServer(command="x"), reference=(ToolCall(tool="add", arguments={}),)
    )
    run.save_scenarios("train", [scenario])
    run.save_scenarios(
        "val", [scenario.model_copy(update={"id": f"v{n}", "task_description": f"Add {n}."}) for n in range(40)]
    )
    return folder
