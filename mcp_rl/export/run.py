"""`mcp-rl export`: find the model, write its folder, prove that it is the model."""

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mcp_rl.boundary import without_secrets
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.export.adapter import check_adapter, write_adapter
from mcp_rl.export.card import BASE_FOLDER, Contents, model_card
from mcp_rl.export.gguf import Converter, ambiguous, check_quantiser, check_type, find_converter, write_gguf
from mcp_rl.export.ollama import create, has_ollama, modelfile, ollama_has, ollama_name
from mcp_rl.export.proof import Proof, proof_of
from mcp_rl.export.source import Source, find_source
from mcp_rl.export.staging import check_free, staged

Format = Literal["adapter", "merged", "gguf", "ollama"]
MOST_DIFFERENT = 1e-3
"""Of two logits that should be the same in float32: 100 times what is seen on models of billions of weights."""
_GGUF = "model.gguf"
_PROBE = "Add 17 and 25, then multiply the sum by 3. What is the square root of 144? Divide 1,000 by 8."


class Exported(BaseModel):
    """What was written: the object that `--json` prints."""

    model_config = ConfigDict(extra="forbid")

    path: str
    format: Format
    model: str
    step: int
    base_model: str
    bytes: int
    files: int
    dtype: str | None = None
    """Of a merged model's weights."""
    update_lost: float | None = None
    """Share of the update that rounding to `dtype` changed, by length; None where it was not measured."""
    logit_difference: float | None = None
    """Largest difference of a logit from base and adapter; None where it was not measured."""
    same_first_token: float | None = None
    """Share of the places in the text at which both find the same token most likely."""
    notes: list[str] = []
    """One sentence each, for a person."""
    ollama: str | None = None
    """The model's name there, where it was created."""


@dataclass(frozen=True)
class Order:
    """What is asked for."""

    name: str
    format: Format
    runs: Path
    """The folder of a project's runs."""
    out: Path | None = None
    base: str | None = None
    dtype: str = "auto"
    quantise: str | None = None
    converter: Path | None = None
    overwrite: bool = False


def export(order: Order) -> Exported:
    """Write the export and return what it is.

    Raises ConfigError for what cannot be exported so or a program that is missing, CheckpointError for a checkpoint
    that is damaged or does not fit its base. Nothing is written then.
    """
    if order.quantise is not None and order.format in ("adapter", "merged"):
        raise ConfigError(f"--quantise is of GGUF files, and --format {order.format} writes none.")
    if order.dtype != "auto" and order.format == "adapter":
        raise ConfigError("--dtype is of merged weights, and --format adapter leaves the base as it is.")
    source = find_source(order.name, order.runs, order.base)
    out = order.out or order.runs.parent / "exports" / f"{source.slug}-{order.format}"
    check_free(out, overwrite=order.overwrite)
    if order.format == "adapter":
        check_adapter(source)
    making = _Making(source, order, proof_of(source), _tools_of(order))
    about = {"format": order.format, "model": source.label, "step": source.step}
    with staged(out, about, overwrite=order.overwrite) as folder:
        getattr(making, order.format)(folder)
        written = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
    if order.format == "ollama":
        making.create(out)
    return Exported(
        path=str(out),
        format=order.format,
        model=source.label,
        step=source.step,
        base_model=source.base_model,
        bytes=size,
        files=len(written) + 1,
        notes=making.notes,
        **making.found,
    )


@dataclass(frozen=True)
class _Tools:
    """Programs that the format needs, looked for before anything is written."""

    kind: str = "f16"
    converter: Converter | None = None
    missing: str | None = None
    """Why there is no converter, where the format can do without one."""


def _tools_of(order: Order) -> _Tools:
    if order.format not in ("gguf", "ollama"):
        return _Tools()
    kind = check_type(order.quantise or "f16")
    try:
        converter = find_converter(order.converter)
    except ConfigError as error:
        if order.format == "gguf" or order.converter or order.quantise:
            raise
        return _Tools(kind, None, str(error))
    check_quantiser(kind)
    return _Tools(kind, converter)


class _Making:
    """One export, format by format."""

    def __init__(self, source: Source, order: Order, proof: Proof, tools: _Tools) -> None:
        self.source, self.order, self.proof, self.tools = source, order, proof, tools
        self.notes: list[str] = []
        self.found: dict[str, Any] = {}

    def adapter(self, folder: Path) -> None:
        rank = write_adapter(self.source, folder)
        beside = self.source.base_called is None
        self._tokenizer(folder)
        if beside:
            self._stretch(folder / BASE_FOLDER)
        elif self.source.positions:
            self.notes.append(
                "It was trained with other rotary positions than its base has, which whoever loads the base must give "
                f"it: {json.dumps(self.source.positions)}."
            )
        if beside:
            self.notes.append("The base has no name that others could find it by, so it lies in base/.")
        self._card(folder, Contents("adapter", base_in_folder=beside, rank=rank, notes=self.notes))

    def merged(self, folder: Path) -> None:
        self._merge(folder)
        self._card(folder, Contents("merged", dtype=self.found["dtype"], notes=self.notes))

    def gguf(self, folder: Path) -> None:
        assert self.tools.converter is not None
        self._convert(self.tools.converter, folder)
        self._card(folder, Contents("gguf", gguf=_GGUF, notes=self.notes))

    def ollama(self, folder: Path) -> None:
        if self.tools.converter is not None:
            tokenizer = self._convert(self.tools.converter, folder)
            weights = f"./{_GGUF}"
        else:
            tokenizer, weights = self._merge(folder), "."
            self.notes.append(
                "The weights are given to Ollama as safetensors, which it converts itself for the architectures that "
                "it knows; with llama.cpp's convert_hf_to_gguf.py they would be one GGUF file."
            )
        found = json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id")
        text = modelfile(
            tokenizer,
            weights,
            positions=self._positions(),
            license=self.source.base_license,
            ends=found if isinstance(found, list) else [],
        )
        (folder / "Modelfile").write_text(text, encoding="utf-8")
        name = ollama_name(self.source.label)
        self._card(folder, Contents("ollama", ollama_name=name, notes=self.notes))

    def create(self, out: Path) -> None:
        """Give it to Ollama, where there is one."""
        name = ollama_name(self.source.label)
        by_hand = f"cd {shlex.quote(str(out))} && ollama create {name} -f Modelfile"
        if not has_ollama():
            self.notes.append(
                f"Ollama is not installed here (https://ollama.com/download), so the model was not created; where it "
                f"is, run: {by_hand}"
            )
            return
        try:
            if ollama_has(name) and not self.order.overwrite:
                self.notes.append(
                    f"Ollama has a model {name} already, which was left alone: add --overwrite to replace it."
                )
                return
            create(name, str(out))
        except ConfigError as error:  # the folder is whole all the same
            self.notes.append(f"The model was not created. {error} Once that is mended: {by_hand}")
        else:
            self.found["ollama"] = name
            self.notes.append(f"Ollama has it as {name}: ollama run {name}")

    # -- parts of it

    def _convert(self, converter: Converter, folder: Path) -> Any:
        """Merge beside, convert, and keep only the file."""
        import shutil

        merged = folder / ".merged"
        merged.mkdir()
        tokenizer = self._merge(merged)
        write_gguf(converter, merged, folder / _GGUF, self.tools.kind)
        for name in ("generation_config.json", "chat_template.jinja", *_tokenizer_names(merged)):
            if (merged / name).is_file():
                shutil.copyfile(merged / name, folder / name)
        shutil.rmtree(merged)
        self.found["dtype"] = self.tools.kind
        if text := ambiguous(folder / "tokenizer.json"):
            self.notes.append(
                f"The tokenizer has added tokens that overlap in a text, as in {text!r}, which llama.cpp may cut at "
                "another place than in training: evaluate it there."
            )
        return tokenizer

    def _merge(self, folder: Path) -> Any:
        from mcp_rl.learning.merge import merge

        source = self.source
        base, adapter = self._weights()
        done = merge(base, adapter, folder, dtype=self.order.dtype)
        tokenizer = self._tokenizer(folder)
        lost = None if math.isnan(done.update_lost) else done.update_lost
        self.found |= {"dtype": done.dtype, "update_lost": lost}
        if done.untied:
            self.notes.append("The adapter changes one of two embeddings that the base holds as one, so they are two.")
        if source.quantisation:
            self.notes.append(
                f"The adapter was trained on the base in {source.quantisation} and is merged into its weights in "
                f"{done.dtype}, so what it says differs a little from what was trained: evaluate the merged model."
            )
        self._compare(base, adapter, folder, tokenizer, exact=done.dtype == "float32")
        self._stretch(folder)
        return tokenizer

    def _stretch(self, folder: Path) -> None:
        """Write the rotary positions of the training into the configuration in a folder."""
        if (scaling := self.source.positions) is None:
            return
        from transformers import AutoConfig

        from mcp_rl.backends.loading.transformers_loader import with_positions

        place = folder / "config.json"
        text = with_positions(AutoConfig.from_pretrained(folder), scaling).get_text_config()
        content = json.loads(place.read_bytes())
        content.pop("rope_scaling", None)
        content.pop("rope_theta", None)  # both are in what follows
        content |= {"rope_parameters": text.rope_parameters, "max_position_embeddings": text.max_position_embeddings}
        place.write_text(json.dumps(content, indent=2) + "\n")

    def _weights(self) -> tuple[Path, Path | None]:
        """Folder of the weights to begin with, and of the adapter."""
        source = self.source
        if source.kind == "whole":
            assert source.checkpoint is not None
            return source.checkpoint, None
        return source.base_folder(), source.checkpoint

    def _compare(self, base: Path, adapter: Path | None, folder: Path, tokenizer: Any, *, exact: bool) -> None:
        """What became of the logits. Raises CheckpointError where they are not the policy's."""
        import psutil

        from mcp_rl.learning.merge import exact_dtype, logit_difference

        free = psutil.virtual_memory().available
        computed = exact_dtype(base, free)
        if computed is None:
            self.notes.append(
                f"The logits were not compared: two models in float32 do not fit the {free / 1e9:.0f} GB that are free."
            )
            return
        difference = logit_difference(base, adapter, folder, tokenizer(_PROBE)["input_ids"], computed)
        self.found |= {"logit_difference": difference.largest, "same_first_token": difference.same_first}
        if exact and not difference.largest <= MOST_DIFFERENT:
            raise CheckpointError(
                f"The merged weights do not give the adapter's logits, they differ by {difference.largest:.2g}, so "
                "nothing was written: is the base the one that the adapter was trained on?"
            )
        lost = self.found["update_lost"]
        rounding = f"; rounding to {self.found['dtype']} changed {100 * lost:.2g} % of the update" if lost else ""
        before = "base and adapter" if adapter is not None else "the weights that were trained"
        self.notes.append(
            f"The logits of a text, computed in {computed}, differ from those of {before} by at most "
            f"{difference.largest:.2g}{rounding}."
        )

    def _tokenizer(self, folder: Path) -> Any:
        """The tokenizer's files, the chat template and generation_config.json."""
        from mcp_rl.backends.base_model import load_tokenizer
        from mcp_rl.learning.merge import generation_config
        from mcp_rl.learning.state import tokenizer_files

        checkpoint = self.source.checkpoint
        own = checkpoint is not None and (checkpoint / "tokenizer_config.json").is_file()
        base = str(self.source.base_at or self.source.base_model)
        tokenizer = (
            load_tokenizer(str(checkpoint)) if own else load_tokenizer(base, revision=self.source.revision_of(base))
        )
        for name, content in tokenizer_files(tokenizer).items():
            (folder / name).write_bytes(content)
        eos = tokenizer.eos_token_id
        ends = generation_config(
            self._config_folder(), int(eos) if eos is not None else None, trained=self.source.kind != "base"
        )
        (folder / "generation_config.json").write_bytes(ends)
        return tokenizer

    def _config_folder(self) -> Path | None:
        """Where config.json lies; None where an adapter's base is not on this machine."""
        source = self.source
        if source.checkpoint is not None and (source.checkpoint / "config.json").is_file():
            return source.checkpoint
        here = source.here("config.json")
        return here.parent if here is not None and here.is_file() else None

    def _positions(self) -> int:
        place = self._config_folder()
        content = json.loads((place / "config.json").read_bytes()) if place else {}
        return int(content.get("max_position_embeddings") or 8192)

    def _card(self, folder: Path, contents: Contents) -> None:
        card = without_secrets(model_card(self.source, self.proof, contents))
        (folder / "README.md").write_text(card, encoding="utf-8")


def _tokenizer_names(folder: Path) -> list[str]:
    """Files of the tokenizer in a model's folder."""
    known = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges")
    return [
        path.name for path in folder.iterdir() if path.name.startswith(known) and not path.name.endswith(".safetensors")
    ]
