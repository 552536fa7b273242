"""Whether a server that we did not start can do what a run needs; one sentence for each thing that it cannot.

Nothing is taken on trust that can be measured: logprobs are compared at two temperatures, and an adapter that no server
can take (its rank is too high) shows whether adapters may come at all, whether the server sees the folder that they
will come in, and which rank it takes.
"""

import json
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError

_PROMPT = [5, 6, 7]
"""Ids that every vocabulary has."""
_RANK_OF_NOBODY = 100_000
_FIRST_SECONDS = 15.0
"""For a server to say what it serves, which takes it no computing."""
_FLAGS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and --enable-lora"


async def served_base(client: httpx.AsyncClient, whose: str, model: str | None) -> dict[str, Any]:
    """What the server says of its base model. Raises ConfigError where there is no such server, it wants another key,
    or its base is not `model` (a folder or a name on the hub)."""
    try:
        answer = await client.get("/v1/models", timeout=_FIRST_SECONDS)
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        raise ConfigError(f"{whose} cannot be reached: {what}. Is it running, and is that its address?") from error
    if answer.status_code in (401, 403):
        raise ConfigError(f"{whose} wants another key than we have: set MCP_RL_ENGINE_KEY (or VLLM_API_KEY).")
    try:
        listed = [entry for entry in answer.json()["data"] if not entry.get("parent")]
        base: dict[str, Any] = listed[0]
        roots = {str(entry.get("root") or entry["id"]) for entry in listed} | {str(entry["id"]) for entry in listed}
        owner = base.get("owned_by")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        said = f"{answer.status_code} {_short(answer, 100)}"
        raise ConfigError(f"{whose} is no vLLM server: it answers /v1/models with {said}.") from None
    if owner != "vllm":
        raise ConfigError(f"{whose} is no vLLM server: its model is owned by {owner!r}.")
    if model is not None and not any(_same_model(model, root) for root in roots):
        raise ConfigError(f"{whose} serves {base.get('root') or base['id']}, and the run's base model is {model}.")
    return base


def _short(answer: httpx.Response, characters: int = 200) -> str:
    """The beginning of what it says, on one line and in quotes."""
    return repr(" ".join(answer.text[: 10 * characters].split())[:characters])


def _same_model(ours: str, theirs: str) -> bool:
    """By name or by folder. Where each machine has a folder of its own, the last part of its name has to do; that the
    weights are the same is seen when the first policy is checked."""
    if ours == theirs or Path(ours).resolve() == Path(theirs).resolve():
        return True
    if not Path(ours).is_dir() and not Path(theirs).is_absolute():
        return ours.casefold() == theirs.casefold()
    return Path(ours).name.casefold() == Path(theirs).name.casefold()


def check_context(base: Mapping[str, Any], whose: str, wanted: int | None) -> None:
    """Raises ConfigError where an episode of `wanted` tokens does not fit."""
    has = base.get("max_model_len")
    if wanted is not None and isinstance(has, int) and has < wanted:
        raise ConfigError(
            f"{whose} takes {has} tokens at most, and an episode may have {wanted}: start it with --max-model-len "
            f"{wanted}, or set engine.max_context={has}."
        )


async def check_sampling(client: httpx.AsyncClient, whose: str, name: str) -> None:
    """Raises ConfigError where tokens do not come back as ids, or not with the logprobs that they were drawn with."""
    cool, plain = await _top(client, whose, name, 0.5), await _top(client, whose, name, 1.0)
    common = sorted(cool.keys() & plain.keys(), key=lambda token: -plain[token])
    if len(common) < 2:
        raise ConfigError(f"{whose} gives no logprobs of several tokens: start it with --max-logprobs 5 or more.")
    first, last = common[0], common[-1]
    # softmax(logits / T): a difference of logprobs at temperature 0.5 is twice the one at 1.
    apart, expected = cool[first] - cool[last], 2 * (plain[first] - plain[last])
    if abs(apart - expected) > 0.05 * max(1.0, abs(expected)):
        raise ConfigError(
            f"{whose} gives logprobs before the temperature: at 0.5, two tokens are {apart:.3f} apart and not "
            f"{expected:.3f}. Start it with --logprobs-mode processed_logprobs."
        )


async def _top(client: httpx.AsyncClient, whose: str, name: str, temperature: float) -> dict[str, float]:
    """Logprobs of the likeliest next tokens."""
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
            raise ConfigError(f"{whose} returns no token ids, so it is too old: it has to be vLLM 0.30 or newer.")
        top = ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0]
        return {str(token): float(value) for token, value in top.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ConfigError(f"{whose} completes a prompt as vLLM does not: {said}.") from None


async def check_adapters(client: httpx.AsyncClient, whose: str, *, rank: int, folder: Path | None) -> None:
    """Raises ConfigError where the server takes no adapters of that rank out of that folder while it runs. Without a
    folder nothing is written, and neither it nor the rank is checked."""
    name = f"probe-{secrets.token_hex(4)}"
    probe = (folder or Path("/nowhere")).resolve() / name
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _RANK_OF_NOBODY, "lora_alpha": 1, "bias": "none"}
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
        raise ConfigError(f"{whose} lets no adapters be loaded while it runs: start it with {_FLAGS}.")
    if "is not enabled" in answer.text:
        raise ConfigError(f"{whose} takes no adapters: start it with {_FLAGS} --max-lora-rank {rank}.")
    if "No adapter found" in answer.text:
        if folder is None:
            return
        raise ConfigError(
            f"{whose} does not see {probe.parent}, where adapters are written: it has to be on this machine, or "
            "the folder on a disk that both share under that name."
        )
    limit = re.search(r"greater than max_lora_rank (\d+)", answer.text)
    if limit is None:
        raise ConfigError(f"{whose} answered an adapter with {answer.status_code} {_short(answer)}.")
    if int(limit[1]) < rank:
        raise ConfigError(
            f"{whose} takes adapters of rank {limit[1]} at most, and train.lora.rank = {rank}: start it with "
            f"--max-lora-rank {rank}, or lower the rank."
        )
