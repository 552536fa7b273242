"""Compare Unsloth's loader and kernels with our own path: the same weights, adapter and batch."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.gpu_check.measure import agreement, budget
from benchmarks.gpu_check.models import base_folder
from benchmarks.gpu_check.setting import ROOT, Failed, Figures, Setting, check

WAYS = {"tree": ("transformers", "tree"), "rows": ("transformers", "rows"), "unsloth": ("unsloth", "auto")}
"""Name to loader and `train.forward`."""


@check
def unsloth_update(setting: Setting) -> Figures:
    """Updates of the 0.5B loaded by Unsloth, and by transformers over a prefix tree and over rows: their speed."""
    prompt, answer = setting.contexts[0] // 2, setting.contexts[0] // 2
    found: Figures = {"context": prompt + answer, "sequences": 8}
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        vocabulary = json.loads((folder / "config.json").read_bytes())["vocab_size"]
        shape = replace(setting.half, vocabulary=vocabulary)
        given = {
            "folder": str(folder),
            "shape": asdict(shape),
            "prompt": prompt,
            "answer": answer,
            "dtype": "float32" if setting.dry_run else "bfloat16",
            "budget": budget(setting, shape),
            "checkpointing": not setting.dry_run,
        }
        grads = {}
        for name, (loader, forward) in WAYS.items():
            if loader == "unsloth" and (reason := without_unsloth(setting)):
                found[name], found["unsloth_skipped"] = None, reason
                continue
            out = Path(place) / f"{name}.safetensors"
            found[name] = _side({**given, "loader": loader, "forward": forward, "out": str(out)}, found)
            grads[name] = load_file(out)
    for name in [name for name in grads if name != "rows"]:
        if grads[name].keys() != grads["rows"].keys():
            raise Failed(f"the adapters of {name} and rows have other layers", found)
        flat = [
            torch.cat([kept[key].double().flatten() for key in sorted(kept)]) for kept in (grads[name], grads["rows"])
        ]
        found[name] |= {
            "against_rows": agreement(*flat),
            "loss_difference": found[name]["loss"] - found["rows"]["loss"],
        }
    found["fastest"] = min(grads, key=lambda name: found[name]["seconds"])
    _judge(setting, found)
    return found


def _judge(setting: Setting, found: Figures) -> None:
    """Raise Failed if two ways disagree."""
    least = 0.9999 if setting.dry_run else 0.98
    for name in ("tree", "unsloth"):
        if found.get(name) and not found[name]["against_rows"]["cosine"] > least:
            cosine = found[name]["against_rows"]["cosine"]
            raise Failed(f"the gradients of {name} have a cosine of {cosine:.4f} with those of the model's own", found)


def without_unsloth(setting: Setting) -> str | None:
    """Return why Unsloth is skipped; None if it is not."""
    if find_spec("unsloth") is None:
        return "Unsloth is not installed: pip install 'mcp-rl[gpu]'"
    return "Unsloth needs a GPU" if setting.dry_run else None


def _side(given: Figures, found: Figures) -> Figures:
    """Return the figures of one loader's process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check.loader_side", json.dumps(given)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"},
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise Failed(f"{given['loader']} with {given['forward']} ended with {done.returncode}: {said[0]}", found)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    kept = ("loader", "quantisation", "dtype", "architecture", "versions")
    return figures | {"loaded": {key: figures["loaded"].get(key) for key in kept}}
