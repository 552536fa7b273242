"""Check that a server which this process did not start can do what a run needs.

What can be measured is measured: logprobs are compared at two temperatures, and an adapter of a rank that no server
takes shows whether adapters can be loaded at all, whether the server sees the folder, and which rank it takes.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm.compat.known import OLDEST, folder_is_unseen, highest_rank, lora_is_disabled
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROMPT = [5, 6, 7]
"""Ids that every vocabulary has."""
_IMPOSSIBLE_RANK = 100_000
_FIRST_SECONDS = 15.0
"""Timeout of the first request, which needs no computing."""
_FLAGS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and --enable-lora"


async def served_base(client: httpx.AsyncClient, whose: str, model: str | None) -> dict[str, Any]:
    """Return what the server says about its base model; `whose` begins the sentences of errors.

    Raises ConfigError if there is no vLLM server, it needs another key, or its base is not `model` (a folder or a name
    on the hub).
    """
    try:
        answer = await client.get("/v1/models", timeout=_FIRST_SECONDS)
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        raise ConfigError(f"{whose} cannot be reached: {what}. Is it running at that address?") from error
    if answer.status_code in (401, 403):
        raise ConfigError(f"{whose} refuses the key: set MCP_RL_ENGINE_KEY (or VLLM_API_KEY).")
    try:
        listed = [entry for entry in answer.json()["data"] if not entry.get("parent")]
        base: dict[str, Any] = listed[0]
        roots = {str(entry.get("root") or entry["id"]) for entry in listed} | {str(entry["id"]) for entry in listed}
        owner = base.get("owned_by")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        said = f"{answer.status_code} {_short(answer, 100)}"
        raise ConfigError(f"{whose} is not a vLLM server: it answers /v1/models with {said}.") from None
    if owner != "vllm":
        raise ConfigError(f"{whose} is not a vLLM server: its model is owned by {owner!r}.")
    if model is not None and not any(_same_model(model, root) for root in roots):
        raise ConfigError(f"{whose} serves {base.get('root') or base['id']}, but the run's base model is {model}.")
    return base


def _short(answer: httpx.Response, characters: int = 200) -> str:
    """The beginning of the answer, on one line and in quotes."""
    return repr(" ".join(answer.text[: 10 * characters].split())[:characters])


def _same_model(model: str, root: str) -> bool:
    """Compare names or folders.

    If each machine has a folder of its own, only the last parts of the paths are compared; whether the weights are the
    same shows when the first policy is checked.
    """
    if model == root or Path(model).resolve() == Path(root).resolve():
        return True
    if not Path(model).is_dir() and not Path(root).is_absolute():
        return model.casefold() == root.casefold()
    return Path(model).name.casefold() == Path(root).name.casefold()


def check_context(base: Mapping[str, Any], whose: str, wanted: int | None) -> None:
    """Raise ConfigError if an episode of `wanted` tokens does not fit."""
    has = base.get("max_model_len")
    if wanted is not None and isinstance(has, int) and has < wanted:
        raise ConfigError(
            f"{whose} takes {has} tokens at most, but an episode may have {wanted}: start it with --max-model-len "
            f"{wanted}, or set engine.max_context={has}."
        )


async def check_sampling(client: httpx.AsyncClient, whose: str, name: str) -> None:
    """Raise ConfigError unless tokens come back as ids with the logprobs that they were drawn with."""
    cool, plain = await _top(client, whose, name, 0.5), await _top(client, whose, name, 1.0)
    common = sorted(cool.keys() & plain.keys(), key=lambda token: -plain[token])
    if len(common) < 2:
        raise ConfigError(f"{whose} returns no logprobs of several tokens: start it with --max-logprobs 5 or more.")
    first, last = common[0], common[-1]
    # softmax(logits / T): a difference of logprobs at temperature 0.5 is twice the one at 1.
    apart, expected = cool[first] - cool[last], 2 * (plain[first] - plain[last])
    if abs(apart - expected) > 0.05 * max(1.0, abs(expected)):
        raise ConfigError(
            f"{whose} returns logprobs from before the temperature: at 0.5, two tokens are {apart:.3f} apart instead "
            f"of {expected:.3f}. Start it with --logprobs-mode processed_logprobs."
        )


async def _top(client: httpx.AsyncClient, whose: str, name: str, temperature: float) -> dict[str, float]:
    """Logprobs of the most likely next tokens."""
    body = {"model": name, "prompt": _PROMPT, "max_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": 0}
    body |= {"min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 5}
    body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = await client.post("/v1/completions", json=body)
    said = f"{answer.status_code} {_short(answer)}"
    if answer.is_error:
        raise ConfigError(f"{whose} does not complete a prompt of token ids: {said}.")
    try:
        choice = answer.json()["choices"][0]
        if not choice.get("token_ids"):
            oldest = ".".join(map(str, OLDEST))
            raise ConfigError(f"{whose} returns no token ids, so it is too old: vLLM {oldest} or newer is needed.")
        top = ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0]
        return {str(token): float(value) for token, value in top.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ConfigError(f"{whose} answers a prompt unlike vLLM: {said}.") from None


async def check_adapters(client: httpx.AsyncClient, whose: str, *, rank: int, folder: Path | None) -> None:
    """Raise ConfigError unless adapters of that rank can be loaded from that folder while the server runs.

    Without a folder nothing is written, and neither the folder nor the rank is checked.
    """
    name = f"probe-{secrets.token_hex(4)}"
    probe = (folder or Path("/nowhere")).resolve() / name
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _IMPOSSIBLE_RANK, "lora_alpha": 1, "bias": "none"}
    try:
        if folder is not None:
            probe.mkdir(parents=True)
            config["target_modules"] = ["q_proj"]
            write_atomically(probe / "adapter_config.json", json.dumps(config).encode())
        answer = await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(probe)})
    finally:
        if folder is not None:
            shutil.rmtree(probe, ignore_errors=True)
    if answer.status_code in (404, 405) and "adapter" not in answer.text.lower():
        raise ConfigError(f"{whose} cannot load adapters while it runs: start it with {_FLAGS}.")
    if lora_is_disabled(answer.text):
        raise ConfigError(f"{whose} takes no adapters: start it with {_FLAGS} --max-lora-rank {rank}.")
    if folder_is_unseen(answer.text):
        if folder is None:
            return
        raise ConfigError(
            f"{whose} does not see {probe.parent}, where adapters are written: run it on this machine, or put the "
            "folder on a disk that both mount under the same path."
        )
    limit = highest_rank(answer.text)
    if limit is None:
        raise ConfigError(f"{whose} answered an adapter with {answer.status_code} {_short(answer)}.")
    if limit < rank:
        raise ConfigError(
            f"{whose} takes adapters of rank {limit} at most, but train.lora.rank = {rank}: start it with "
            f"--max-lora-rank {rank}, or lower the rank."
        )
