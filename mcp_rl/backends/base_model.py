"""The base model, its tokenizer, and a learner around it, loaded with transformers and PEFT."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from mcp_rl.backends.initial import check_initial
from mcp_rl.config import TINY, TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import add_adapter, full_copy
from mcp_rl.learning.forward import forward_for
from mcp_rl.learning.state import load_weights
from mcp_rl.learning.step import Learner
from mcp_rl.tiny import weights_path

log = logging.getLogger(__name__)


def base_location(name: str) -> str:
    """What `from_pretrained` needs for a base model's name: the shipped folder for `mcp-rl/tiny`, else the name."""
    return str(weights_path()) if name == TINY else name


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model. Raises ConfigError where there is none of that name."""
    try:
        return AutoTokenizer.from_pretrained(base_location(name))
    except (OSError, ValueError) as error:
        raise _unloadable(name, error) from error


def load_base(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A base model and its tokenizer, float32 on a CPU. Raises ConfigError where there is none of that name."""
    location, cuda = base_location(name), torch.cuda.is_available()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # where its reader has gone, tqdm hangs at exit
    tokenizer = load_tokenizer(name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(location, dtype="auto" if cuda else torch.float32)
    except (OSError, ValueError) as error:
        raise _unloadable(name, error) from error
    return model.to("cuda") if cuda else model, tokenizer


def _unloadable(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"Cannot load the base model {name!r}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


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
) -> Learner:
    """`load_learner` for a base that is loaded already. With method "lora" its modules become part of the learner;
    with "full" it is left alone, as the reference of the KL, and a copy of it is trained."""
    initial = check_initial(init, config, base_model) if init is not None else None
    forward = forward_for(base, config.forward)
    if forward.note:
        log.warning(forward.note)
    how: dict[str, Any] = {"seed": seed, "temperature": temperature, "forward": forward}
    if config.method == "full":
        learner = Learner(full_copy(base), config, reference=base, **how)
    else:
        lora, name = config.lora, base_location(base_model)
        settings = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
        try:
            adapted = add_adapter(base, base_name=name, seed=seed, **settings)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"The base model {base_model!r} takes no such adapter: {_first_line(error)}") from error
        learner = Learner(adapted, config, **how)
    if initial is not None:
        load_weights(learner.model, initial.folder)
    return learner
