"""The size of a model, from its config.json: in a folder, in the local cache, on the hub, or as published.

The number of parameters comes from the weight files' headers where they are on this machine, else from the hub, else
from a formula over config.json for the architectures whose formula is known.
"""

import json
import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal

from mcp_rl.backends.plan.machine import FrozenData
from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path

_BIAS_OF_QKV = {"qwen2"}
_NORMS_OF_HEADS = {"qwen3"}
_GATED = {"qwen2", "qwen3", "llama", "mistral", "gemma", "smollm3", "granite", "phi3"}
"""Model types whose layers are attention and a gated feed-forward network, each behind one norm."""

_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, struct.error)
"""What reading a damaged weight file may raise: it may hold anything."""


class ModelShape(FrozenData):
    """The dimensions of a model that its memory depends on."""

    name: str
    source: str
    """The origin of these numbers, for people."""
    parameters: int
    """Number of parameters, tied ones counted once."""
    layers: int
    hidden: int
    feed_forward: int
    """Inner width of the feed-forward network that a token goes through."""
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int
    tied: bool
    """True if the output layer is the input embedding."""
    stored: Literal["8-bit", "4-bit"] | None = None
    """Bits of its quantised weights on disk; None for 16 or 32."""
    model_type: str = ""

    @property
    def queries(self) -> int:
        """Width of the queries, all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of the keys, all heads together; the values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding and the output layer."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def linear(self) -> int:
        """Parameters outside of the embeddings, which quantisation shrinks, except for a few norms."""
        return max(0, self.parameters - self.embedding)


def _qwen(
    size: str, layers: int, hidden: int, feed_forward: int, heads: int, kv_heads: int, vocabulary: int, tied: bool
) -> tuple[str, dict[str, Any]]:
    config = {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
    }
    return f"Qwen/Qwen2.5-{size}-Instruct", config


KNOWN: dict[str, dict[str, Any]] = dict(
    (
        _qwen("0.5B", 24, 896, 4864, 14, 2, 151_936, True),
        _qwen("1.5B", 28, 1536, 8960, 12, 2, 151_936, True),
        _qwen("3B", 36, 2048, 11008, 16, 2, 151_936, True),
        _qwen("7B", 28, 3584, 18944, 28, 4, 152_064, False),
        _qwen("14B", 48, 5120, 13824, 40, 8, 152_064, False),
        _qwen("32B", 64, 5120, 27648, 40, 8, 152_064, False),
    )
)
"""Published configurations of the models that are proposed where another does not fit, smallest first."""


def model_shape(name: str, *, online: bool = True, seconds: float = 5.0) -> ModelShape:
    """Return the shape of a base model. Raises ConfigError, one sentence, where it cannot be known."""
    folder = weights_path() if name == TINY else Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"The folder {name} holds no config.json, so it is not a base model.")
        return _shape(name, "shipped with the package" if name == TINY else "its folder", folder)
    if folder.is_absolute() or name.startswith("."):
        raise ConfigError(f"The base model's folder {name} does not exist.")
    if (cached := _cached(name)) is not None:
        return _shape(name, "the local cache", cached)
    if name in KNOWN:
        return shape_of(name, KNOWN[name], "its published configuration")
    if not online:
        raise ConfigError(f"The size of {name} is unknown: it is not on this machine, and the hub was not asked.")
    return _from_hub(name, seconds)


def shape_of(name: str, config: Mapping[str, Any], source: str, parameters: int | None = None) -> ModelShape:
    """Return the shape that a config.json describes.

    `parameters` is their number, where it was counted; else the formula gives it. Raises ConfigError for a
    configuration that says too little.
    """
    text = config.get("text_config") or config
    config = {**config, **text}
    try:
        hidden, layers = _first_of(config, "hidden_size", "n_embd"), _first_of(config, "num_hidden_layers", "n_layer")
        heads = _first_of(config, "num_attention_heads", "n_head")
        vocabulary = _first_of(config, "vocab_size")
    except KeyError as error:
        raise ConfigError(f"The config.json of {name} lacks {error.args[0]}, so its size is unknown.") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"The config.json of {name} holds something else than sizes: {error}.") from error
    widths = map(config.get, ("moe_intermediate_size", "intermediate_size", "n_inner"))
    inner = next(filter(None, widths), 4 * hidden)
    if config.get("num_experts_per_tok"):
        inner *= int(config["num_experts_per_tok"])
    shape = ModelShape(
        name=name,
        source=source,
        parameters=parameters or 0,
        layers=layers,
        hidden=hidden,
        feed_forward=int(inner),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocabulary=vocabulary,
        positions=int(config.get("max_position_embeddings") or config.get("n_positions") or 4096),
        tied=bool(config.get("tie_word_embeddings", True)),
        model_type=str(config.get("model_type", "")),
        stored=_stored(config),
    )
    if parameters:
        return shape
    if shape.model_type not in _GATED:
        raise ConfigError(
            f"The number of parameters of {name} is unknown: its weights are not on this machine, and there is no "
            f"formula for a model of type {shape.model_type!r}."
        )
    return shape.model_copy(update={"parameters": _parameters(shape, config)})


def _stored(config: Mapping[str, Any]) -> Literal["8-bit", "4-bit"] | None:
    said = config.get("quantization_config")
    if not isinstance(said, Mapping):
        return None
    eight = said.get("load_in_8bit") or said.get("bits") == 8 or "8" in str(said.get("quant_method", ""))
    return "8-bit" if eight else "4-bit"


def _parameters(shape: ModelShape, config: Mapping[str, Any]) -> int:
    """Count the parameters of a decoder with gated feed-forward networks by layer (Touvron et al., LLaMA, 2023, section
    2.2)."""
    h, q, kv, f = shape.hidden, shape.queries, shape.keys, shape.feed_forward
    layer = 2 * h * q + 2 * h * kv + 3 * h * f + 2 * h
    if shape.model_type in _BIAS_OF_QKV:
        layer += q + 2 * kv
    elif config.get("attention_bias"):
        layer += q + 2 * kv + h
    if config.get("mlp_bias"):
        layer += 2 * f + h
    if shape.model_type in _NORMS_OF_HEADS:
        layer += 2 * shape.head_dim
    return shape.embedding + shape.layers * layer + h


def _first_of(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        if config.get(key) is not None:
            return int(config[key])
    raise KeyError(keys[0])


def _shape(name: str, source: str, folder: Path) -> ModelShape:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Cannot read the config.json of {name}: {error}.") from error
    try:
        return shape_of(name, config, source, _count_parameters(folder))
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"The config.json of {name} holds something else than sizes: {error}.") from error


def _count_parameters(folder: Path) -> int | None:
    """Count the parameters in a folder's safetensors files by their headers; None if there are none, or not all."""
    try:
        return sum(map(_count_in_header, _weight_files(folder))) or None
    except _DAMAGED:
        return None


def check_weights(shape: ModelShape) -> None:
    """Raise ConfigError if a model's weights on this machine are not those of the model that its config.json describes.

    Layers and their width are compared, in 16 or 32 bits and for the architectures whose formula is known; whatever
    else is wrong is found when the weights are loaded.
    """
    named = Path(shape.name).expanduser()
    folder = named if named.is_dir() else _cached(shape.name)
    if folder is None or shape.stored or shape.model_type not in _GATED:
        return
    try:
        headers = {tensor: about for file in _weight_files(folder) for tensor, about in _header(file).items()}
        widths = [about["shape"][-1] for tensor, about in headers.items() if tensor.endswith(".embed_tokens.weight")]
        layers = len({found[1] for tensor in headers if (found := re.search(r"\.layers\.(\d+)\.", tensor))})
    except _DAMAGED:
        return
    if len(widths) != 1 or not layers:
        return
    if (layers, widths[0]) != (shape.layers, shape.hidden):
        raise ConfigError(
            f"The weights of {shape.name} have {layers} layers of width {widths[0]}, but its config.json describes "
            f"{shape.layers} of width {shape.hidden}: they belong to different models. Download the model again, or "
            "name another folder."
        )


def _weight_files(folder: Path) -> list[Path]:
    """Return a folder's safetensors files, as the index names them if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted(set(files))]
    return sorted(folder.glob("*.safetensors"))


def _header(file: Path) -> dict[str, Any]:
    """Return the entries of a safetensors file, whose first eight bytes are the length of a JSON header."""
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        if length > 2**27:
            raise ValueError("no safetensors file")
        header: dict[str, Any] = json.loads(content.read(length))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _count_in_header(file: Path) -> int:
    """Count the elements of a safetensors file."""
    header = _header(file)
    quantised = any(tensor.get("dtype") in ("U8", "I8") for tensor in header.values())
    if quantised:
        raise ValueError("packed weights without their number")
    return sum(prod(tensor["shape"]) for tensor in header.values())


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise ConfigError(
            f"There is no base model {name!r}: give a Hugging Face model or a folder with one."
        ) from error
    return Path(found).parent if isinstance(found, str) else None


def _from_hub(name: str, seconds: float) -> ModelShape:
    import httpx
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, timeout=seconds)
        counted = info.safetensors.total if info.safetensors is not None else None
        file = hf_hub_download(name, "config.json", etag_timeout=seconds)
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except GatedRepoError as error:
        raise ConfigError(
            f"{name} is gated: ask for access on its page, and put a token that has it into HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"There is no base model {name!r} on the hub, or HF_TOKEN gives no access to it.") from error
    except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError, ValueError) as error:
        raise ConfigError(
            f"The size of {name} is unknown: it is not on this machine, and the hub cannot be reached."
        ) from error
    return shape_of(name, config, "the hub", counted)
