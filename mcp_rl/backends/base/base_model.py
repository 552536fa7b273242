"""Loads the base model, its tokenizer and a learner around it, by Unsloth or by transformers and PEFT.

Both loaders take the same options, and the loaded model is compared with the request.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from mcp_rl.backends.base.loaded import check_asked, check_stands_for, describe
from mcp_rl.backends.base.options import LoadPlan, base_location, plan_loading
from mcp_rl.backends.base.transformers_loader import load_with_transformers, read_config
from mcp_rl.backends.base.unsloth_loader import adapt_with_unsloth, load_with_unsloth
from mcp_rl.backends.initial import check_initial
from mcp_rl.backends.processes.failures import out_of_memory
from mcp_rl.errors import ConfigError, McpRlError
from mcp_rl.inference.chat.chat_format import CHAT
from mcp_rl.inference.chat.ends import RECORDED, listed_ends, recorded_ends
from mcp_rl.learning.adapter import add_adapter, full_copy
from mcp_rl.learning.disk.state import load_weights
from mcp_rl.learning.forward.forward import forward_for
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.targets import describe_adapted, resolve_targets, uncovered
from mcp_rl.system.boundary import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_rl.config import ChatConfig, TrainConfig, UnslothConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Base:
    """A base model as it was loaded."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    plan: LoadPlan
    loaded: dict[str, Any]
    """A description of the loaded model, for model.json."""


def load_tokenizer(
    name: str, *, revision: str | None = None, token: str | bool | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a base model. Raises ConfigError if there is none of that name."""
    where: dict[str, Any] = {"revision": revision, "token": token, "trust_remote_code": trust_remote_code}
    given = {key: value for key, value in where.items() if value is not None}
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(base_location(name), **given)
        tokenizer.decode(tokenizer.encode("1 + 2", add_special_tokens=False))  # settings are looked at only now
    except Exception as error:  # a stranger's files, in which the libraries may trip over anything
        raise _unloadable(name, error) from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.get_added_vocab()):  # transformers made an empty one
        raise ConfigError(f"The base model {name!r} has no tokenizer beside its weights: put its files there.")
    return tokenizer


def load_ends(name: str, *, revision: str | None = None) -> tuple[int, ...]:
    """Return the ids that end a base model's turns, from its generation_config.json, else its config.json."""
    try:
        return listed_ends(GenerationConfig.from_pretrained(base_location(name), revision=revision or "main"))
    except Exception:  # a stranger's files
        with suppress(Exception):
            return listed_ends(AutoConfig.from_pretrained(base_location(name), revision=revision or "main"))
    return ()


def load_base(name: str, options: UnslothConfig | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a base model and its tokenizer by transformers and PEFT, in float32 on a CPU.

    Raises ConfigError if there is none of that name.
    """
    base = open_base(plan_loading(name, options, unsloth_allowed=False))
    return base.model, base.tokenizer


def open_base(plan: LoadPlan, before: Mapping[str, Any] | None = None) -> Base:
    """Load the model exactly as planned. `before` describes the model that the run loaded earlier; None for a new run.

    Raises ConfigError if it is not there, may not be read, or differs from the plan.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # tqdm hangs at exit if the reader of its output has gone
    options = plan.options
    own = {"token": plan.token(), "trust_remote_code": options.trust_remote_code}
    tokenizer = load_tokenizer(
        plan.base_model,
        revision=None if options.model_name else plan.revision,
        **own,  # type: ignore[arg-type]
    )
    try:
        config = read_config(plan)
        if plan.name != plan.base_model:
            check_stands_for(plan, read_config(plan, base_location(plan.base_model)), config)
        _check_safetensors(plan)
        load = load_with_unsloth if plan.loader == "unsloth" else load_with_transformers
        model = load(plan, config)  # prompts are rendered by the stored tokenizer, not by one that Unsloth mended
        check_asked(model, plan, config)
    except McpRlError:
        raise
    except Exception as error:  # a stranger's files
        if out_of_memory(type(error).__name__, first_line(error)):
            raise  # the caller knows the advice
        raise _unloadable(plan.name, error) from error
    ends = listed_ends(getattr(model, "generation_config", None)) if before is None else recorded_ends(before)
    return Base(model, tokenizer, plan, {**describe(model, plan, before), RECORDED: list(ends)})


def with_chat(base: Base, chat: ChatConfig) -> Base:
    """Record the settings of the base's chat format in it; return the base."""
    return replace(base, loaded={**base.loaded, CHAT: chat.model_dump(mode="json")})


def _check_safetensors(plan: LoadPlan) -> None:
    """Raise ConfigError for a folder whose weights are in another format, such as pickles, which may run code."""
    folder = Path(plan.location).expanduser()
    others = sorted(path.name for ending in ("bin", "pt", "pth", "pkl") for path in folder.glob(f"*.{ending}"))
    if others and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"Cannot load the base model {plan.name!r}: only safetensors are loaded, and its weights are in "
            f"{others[0]}; convert them where you trust them, with save_pretrained of transformers."
        )


def _unloadable(name: str, error: Exception) -> ConfigError:
    if "gated repo" in str(error) or type(error.__cause__).__name__ == "GatedRepoError":
        known = "the token in HF_TOKEN has no access to it" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
        return ConfigError(
            f"Cannot load the base model {name!r}: it is gated, and {known}; accept its licence on the hub, and put a "
            "token of that account into the environment variable HF_TOKEN."
        )
    if isinstance(error, OSError) and "safetensors" in str(error):
        return ConfigError(
            f"Cannot load the base model {name!r}: only safetensors are loaded, and it has none; choose a model that "
            "has them, or convert its weights where you trust them."
        )
    return ConfigError(f"Cannot load the base model {name!r}: {first_line(error)}")


def load_learner(
    base_model: str, config: TrainConfig, *, seed: int = 0, temperature: float = 1.0, init: Path | None = None
) -> Learner:
    """Load a learner without an engine: with a fresh adapter (or copy of the weights), or with the weights of `init`.

    Raises ConfigError if there is no such base, or if `init` does not fit it.
    """
    return make_learner(load_base(base_model)[0], base_model, config, seed=seed, temperature=temperature, init=init)


def make_learner(
    base: PreTrainedModel,
    base_model: str,
    config: TrainConfig,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    init: Path | None = None,
    plan: LoadPlan | None = None,
    say: Callable[[str], None] = log.warning,
) -> Learner:
    """Make a learner on a base that was loaded by `plan`.

    With method "lora" the base's modules become part of the learner. With "full" a float32 copy is trained, multiplied
    in the base's type, and the base stays unchanged as the reference of the KL. Without a KL, and if the plan says that
    it is not sampled either, the base itself becomes that copy. `say` gets a sentence if shared prefixes cannot be
    computed once.
    """
    initial = check_initial(init, config, base_model) if init is not None else None
    forward = forward_for(base, config.forward)
    if forward.note:
        say(forward.note)
    adapt = add_adapter if plan is None or plan.loader == "transformers" else partial(adapt_with_unsloth, plan=plan)
    how: dict[str, Any] = {"seed": seed, "temperature": temperature, "forward": forward}
    if config.method == "full":
        kept, compute = bool(config.kl) or plan is None or plan.sampled, base.dtype
        trained = full_copy(base, copied=kept)
        learner = Learner(trained, config, reference=base if kept else None, compute=compute, **how)
    else:
        lora, name = config.lora, base_location(base_model)
        targets = resolve_targets(base, lora.targets)
        settings = {"rank": lora.rank, "alpha": lora.alpha, "targets": targets}
        try:
            adapted = adapt(base, base_name=name, seed=seed if plan is None else plan.seed, **settings)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"The base model {base_model!r} takes no such adapter: {first_line(error)}") from error
        learner = Learner(adapted, config, **how)
        if sentence := uncovered(describe_adapted(adapted), base_model):
            say(sentence)
    if initial is not None:
        load_weights(learner.model, initial.folder)
    return learner
