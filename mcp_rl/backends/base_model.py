"""The base model, its tokenizer, and a learner around it, loaded by Unsloth or by transformers and PEFT.

Both loaders take the same options, and what they loaded is compared with what was asked for.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from mcp_rl.backends.failures import out_of_memory
from mcp_rl.backends.initial import check_initial
from mcp_rl.backends.loading.loaded import check_asked, check_stands_for, describe
from mcp_rl.backends.loading.options import LoadPlan, base_location, plan_loading
from mcp_rl.backends.loading.transformers_loader import load_with_transformers, read_config
from mcp_rl.backends.loading.unsloth_loader import adapt_with_unsloth, load_with_unsloth
from mcp_rl.boundary import first_line
from mcp_rl.chat.ends import RECORDED, listed_ends, recorded_ends
from mcp_rl.config import TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import add_adapter, full_copy
from mcp_rl.learning.forward import forward_for
from mcp_rl.learning.state import load_weights
from mcp_rl.learning.step import Learner

__all__ = [
    "Base",
    "base_location",
    "load_base",
    "load_ends",
    "load_learner",
    "load_tokenizer",
    "make_learner",
    "open_base",
]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Base:
    """A base model as it was loaded."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    plan: LoadPlan
    loaded: dict[str, Any]
    """What it is, for model.json."""


def load_tokenizer(
    name: str, *, revision: str | None = None, token: str | bool | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model. Raises ConfigError where there is none of that name."""
    where: dict[str, Any] = {"revision": revision, "token": token, "trust_remote_code": trust_remote_code}
    given = {key: value for key, value in where.items() if value is not None}
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(base_location(name), **given)
    except (OSError, ValueError) as error:
        raise _unloadable(name, error) from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.get_added_vocab()):  # transformers makes an empty one where none is
        raise ConfigError(f"The base model {name!r} has no tokenizer beside its weights: put its files there.")
    return tokenizer


def load_ends(name: str, *, revision: str | None = None) -> tuple[int, ...]:
    """The ids at which a base model ends its turns, as its generation_config.json says, else its config.json."""
    try:
        return listed_ends(GenerationConfig.from_pretrained(base_location(name), revision=revision or "main"))
    except OSError:
        with suppress(OSError, ValueError):
            return listed_ends(AutoConfig.from_pretrained(base_location(name), revision=revision or "main"))
    return ()


def load_base(name: str, options: UnslothConfig | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A base model and its tokenizer, float32 on a CPU, to be sampled or trained by transformers and PEFT.

    Raises ConfigError where there is none of that name.
    """
    base = open_base(plan_loading(name, options, unsloth_allowed=False))
    return base.model, base.tokenizer


def open_base(plan: LoadPlan, before: Mapping[str, Any] | None = None) -> Base:
    """Load exactly what the plan says. `before` is what an earlier start of the run loaded; None for a new run.

    Raises ConfigError, one sentence, where it is not there, may not be read, or is not what was asked for.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # where its reader has gone, tqdm hangs at exit
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
        load = load_with_unsloth if plan.loader == "unsloth" else load_with_transformers
        model = load(plan, config)  # with the tokenizer that prompts are rendered by, not one that Unsloth mended
        check_asked(model, plan, config)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        if out_of_memory(type(error).__name__, first_line(error)):
            raise  # whoever asked knows what to do about it
        raise _unloadable(plan.name, error) from error
    ends = listed_ends(getattr(model, "generation_config", None)) if before is None else recorded_ends(before)
    return Base(model, tokenizer, plan, {**describe(model, plan, before), RECORDED: list(ends)})


def _unloadable(name: str, error: Exception) -> ConfigError:
    if "gated repo" in str(error) or type(error.__cause__).__name__ == "GatedRepoError":
        known = "the token in HF_TOKEN has no access to it" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
        return ConfigError(
            f"Cannot load the base model {name!r}: it is gated, and {known}; accept its licence on the hub, and put a "
            "token of that account into the environment variable HF_TOKEN."
        )
    return ConfigError(f"Cannot load the base model {name!r}: {first_line(error)}")


def load_learner(
    base_model: str, config: TrainConfig, *, seed: int = 0, temperature: float = 1.0, init: Path | None = None
) -> Learner:
    """A learner alone, with no engine: a fresh adapter (or copy of the weights), or what `init` holds.

    Raises ConfigError where there is no such base, or where `init` does not fit it.
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
    """`load_learner` for a base that is loaded already, as `plan` says. With method "lora" its modules become part of
    the learner; with "full" it is left alone, as the reference of the KL, and a copy of it is trained. `say` is told,
    in one sentence, where shared prefixes cannot be computed once."""
    initial = check_initial(init, config, base_model) if init is not None else None
    forward = forward_for(base, config.forward)
    if forward.note:
        say(forward.note)
    adapt = add_adapter if plan is None or plan.loader == "transformers" else partial(adapt_with_unsloth, plan=plan)
    how: dict[str, Any] = {"seed": seed, "temperature": temperature, "forward": forward}
    if config.method == "full":
        learner = Learner(full_copy(base), config, reference=base, **how)
    else:
        lora, name = config.lora, base_location(base_model)
        settings = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
        try:
            adapted = adapt(base, base_name=name, seed=seed if plan is None else plan.seed, **settings)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"The base model {base_model!r} takes no such adapter: {first_line(error)}") from error
        learner = Learner(adapted, config, **how)
    if initial is not None:
        load_weights(learner.model, initial.folder)
    return learner
