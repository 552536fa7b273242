"""`mcp-rl export`: find the model, write its folder, verify the written model."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mcp_rl.backends.base.chat_files import chat_of_files
from mcp_rl.backends.base.options import loaded_for
from mcp_rl.config import TINY
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.inference.chat.chat_format import CHAT, ChatFormat
from mcp_rl.runs.export.adapter import check_adapter, write_adapter
from mcp_rl.runs.export.card import BASE_FOLDER, Contents, model_card
from mcp_rl.runs.export.dataset import find_dataset, write_dataset
from mcp_rl.runs.export.gguf import Converter, ambiguous, check_quantiser, check_type, find_converter, write_gguf
from mcp_rl.runs.export.hub import HubPlace, find_place, push
from mcp_rl.runs.export.ollama import create, has_ollama, modelfile, ollama_has, ollama_name
from mcp_rl.runs.export.proof import Proof, read_proof
from mcp_rl.runs.export.source import ExportSource, find_source
from mcp_rl.runs.export.staging import check_free, staged
from mcp_rl.runs.trained_tools import Trained
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.version import own_version

Format = Literal["adapter", "merged", "gguf", "ollama", "dataset"]
MOST_DIFFERENT = 1e-3
"""Largest allowed difference of two logits that should be equal in float32: 100 times that of models of billions of
weights."""
_GGUF = "model.gguf"
_PROBE = "Add 17 and 25, then multiply the sum by 3. What is the square root of 144? Divide 1,000 by 8."


class Exported(BaseModel):
    """The finished export: the object that `--json` prints."""

    model_config = ConfigDict(extra="forbid")

    path: str
    format: Format
    model: str
    step: int = 0
    base_model: str | None = None
    """None for a dataset."""
    bytes: int
    files: int
    dtype: str | None = None
    """Type of a merged model's weights."""
    update_lost: float | None = None
    """Share of the update, by length, that rounding to `dtype` changed; None where it was not measured."""
    logit_difference: float | None = None
    """Largest difference of a logit from base and adapter; None where it was not measured."""
    same_first_token: float | None = None
    """Share of the text's positions at which both models have the same most likely token."""
    notes: list[str] = []
    """Notes for a person, one sentence each."""
    ollama: str | None = None
    """The model's name in Ollama, where it was created."""
    hub: str | None = None
    """Address on the hub, where it was pushed."""


@dataclass(frozen=True)
class ExportRequest:
    """The model, format and options of an export."""

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
    push_to_hub: str | None = None
    """OWNER/NAME of a repository on the Hugging Face hub."""
    public: bool = False


def export(request: ExportRequest) -> Exported:
    """Write the export, push it where that is asked for, and describe it.

    Raises ConfigError for a model that has no such export or a program that is missing, CheckpointError for a
    checkpoint that is damaged or does not fit its base, HubError if the hub fails. Nothing is written then, except that
    an export whose push failed stays on this machine.
    """
    if request.quantise is not None and request.format not in ("gguf", "ollama"):
        raise ConfigError(f"--quantise needs a GGUF file, and --format {request.format} writes none.")
    if request.dtype != "auto" and request.format in ("adapter", "dataset"):
        raise ConfigError(f"--dtype needs merged weights, and --format {request.format} merges none.")
    if request.public and request.push_to_hub is None:
        raise ConfigError("--public needs --push-to-hub OWNER/NAME: only what is on the hub can be public.")
    place = None
    if request.push_to_hub is not None:
        kind: Literal["model", "dataset"] = "dataset" if request.format == "dataset" else "model"
        place = find_place(request.push_to_hub, kind, public=request.public, overwrite=request.overwrite)
    done = (_export_dataset if request.format == "dataset" else _export_model)(request)
    return done if place is None else _pushed(done, place)


def _pushed(done: Exported, place: HubPlace) -> Exported:
    named = f"{done.model} as {done.format}" if place.kind == "model" else f"Scenarios and episodes of {done.model}"
    address = push(place, Path(done.path), f"{named}, by mcp-rl {own_version() or ''}".rstrip())
    return done.model_copy(update={"hub": address})


def _export_dataset(request: ExportRequest) -> Exported:
    project = request.runs.parent
    source = find_dataset(request.name, project)
    out = request.out or project / "exports" / f"{source.label}-dataset"
    with staged(out, {"format": "dataset", "model": source.label}, overwrite=request.overwrite) as folder:
        notes = write_dataset(source, folder, request.push_to_hub or "OWNER/NAME")
        written = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
    return Exported(
        path=str(out), format="dataset", model=source.label, bytes=size, files=len(written) + 1, notes=notes
    )


def _export_model(request: ExportRequest) -> Exported:
    source = find_source(request.name, request.runs, request.base)
    out = request.out or request.runs.parent / "exports" / f"{source.slug}-{request.format}"
    check_free(out, overwrite=request.overwrite)
    if request.format == "adapter":
        check_adapter(source)
    writer = _Writer(source, request, read_proof(source), _find_programs(request))
    trained = writer.trained
    about = {
        **{"format": request.format, "model": source.label, "step": source.step},
        **{"server": trained.server, "max_turn_tokens": trained.max_turn_tokens},
        "base_model": TINY if source.base_model == TINY else source.base_called,
    }
    with staged(out, about, overwrite=request.overwrite) as folder:
        getattr(writer, request.format)(folder)
        if trained.tools:
            trained.tools.write(folder)
        written = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in written)
    if request.format == "ollama":
        writer.create(out)
    return Exported(
        path=str(out),
        format=request.format,
        model=source.label,
        step=source.step,
        base_model=source.base_model,
        bytes=size,
        files=len(written) + 1,
        notes=writer.notes,
        **writer.found,
    )


@dataclass(frozen=True)
class _Programs:
    """The programs that the format needs, looked up before anything is written."""

    kind: str = "f16"
    converter: Converter | None = None


def _find_programs(request: ExportRequest) -> _Programs:
    if request.format not in ("gguf", "ollama"):
        return _Programs()
    kind = check_type(request.quantise or "f16")
    try:
        converter = find_converter(request.converter)
    except ConfigError:
        if request.format == "gguf" or request.converter or request.quantise:
            raise
        return _Programs(kind)
    check_quantiser(kind)
    return _Programs(kind, converter)


class _Writer:
    """The writer of an export, with a method for each format."""

    def __init__(self, source: ExportSource, request: ExportRequest, proof: Proof, programs: _Programs) -> None:
        self.source, self.request, self.proof, self.programs = source, request, proof, programs
        self.trained = Trained.of_run(source.run) if source.run else Trained()
        self.notes: list[str] = list(dict.fromkeys([*source.unchecked, *proof.unchecked]))
        self.notes += filter(None, [self.trained.missing])
        self.found: dict[str, Any] = {}

    def adapter(self, folder: Path) -> None:
        rank = write_adapter(self.source, folder)
        beside = self.source.base_called is None
        self._tokenizer(folder)
        if beside:
            self._stretch(folder / BASE_FOLDER)
        elif self.source.positions:
            self.notes.append(
                "It was trained with other rotary positions than its base has; set them when you load the base: "
                f"{json.dumps(self.source.positions)}."
            )
        if beside:
            self.notes.append("The base has no name on the hub, so it is included in base/.")
        self._card(folder, Contents("adapter", base_in_folder=beside, rank=rank, notes=self.notes))

    def merged(self, folder: Path) -> None:
        self._merge(folder)
        self._card(folder, Contents("merged", dtype=self.found["dtype"], notes=self.notes))

    def gguf(self, folder: Path) -> None:
        assert self.programs.converter is not None
        self._convert(self.programs.converter, folder)
        self._card(folder, Contents("gguf", gguf=_GGUF, notes=self.notes))

    def ollama(self, folder: Path) -> None:
        if self.programs.converter is not None:
            tokenizer = self._convert(self.programs.converter, folder)
            weights = f"./{_GGUF}"
        else:
            tokenizer, weights = self._merge(folder), "."
            self.notes.append(
                "Ollama gets the weights as safetensors, which it converts for the architectures that it knows; with "
                "llama.cpp's convert_hf_to_gguf.py they would be one GGUF file."
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
        """Create the model in Ollama, where Ollama is installed."""
        name = ollama_name(self.source.label)
        by_hand = f"cd {shlex.quote(str(out))} && ollama create {name} -f Modelfile"
        if not has_ollama():
            self.notes.append(
                f"Ollama is not installed here (https://ollama.com/download), so the model was not created; with "
                f"Ollama, run: {by_hand}"
            )
            return
        try:
            if ollama_has(name) and not self.request.overwrite:
                self.notes.append(f"Ollama has a model {name} already, which was kept: add --overwrite to replace it.")
                return
            create(name, str(out))
        except ConfigError as error:  # the folder is complete all the same
            self.notes.append(f"The model was not created. {error} Once that is fixed, run: {by_hand}")
        else:
            self.found["ollama"] = name
            self.notes.append(f"Ollama has the model as {name}: ollama run {name}")

    # -- shared parts

    def _convert(self, converter: Converter, folder: Path) -> Any:
        """Merge into a subfolder, convert, and keep only the GGUF file and the tokenizer."""
        import shutil

        merged = folder / ".merged"
        merged.mkdir()
        tokenizer = self._merge(merged)
        write_gguf(converter, merged, folder / _GGUF, self.programs.kind)
        for name in ("generation_config.json", "chat_template.jinja", *_tokenizer_names(merged)):
            if (merged / name).is_file():
                shutil.copyfile(merged / name, folder / name)
        shutil.rmtree(merged)
        self.found["dtype"] = self.programs.kind
        if text := ambiguous(folder / "tokenizer.json"):
            self.notes.append(
                f"The tokenizer has added tokens that overlap in texts such as {text!r}, which llama.cpp may split "
                "differently than training did: evaluate it there."
            )
        return tokenizer

    def _merge(self, folder: Path) -> Any:
        from mcp_rl.learning.disk.merge import merge

        source = self.source
        base, adapter = self._weights()
        done = merge(base, adapter, folder, dtype=self.request.dtype)
        tokenizer = self._tokenizer(folder)
        lost = None if math.isnan(done.update_lost) else done.update_lost
        self.found |= {"dtype": done.dtype, "update_lost": lost}
        if done.untied:
            self.notes.append("The adapter changes one of two tied embeddings, so the export holds both.")
        if source.quantisation:
            self.notes.append(
                f"The adapter was trained on the base in {source.quantisation} and is merged into its weights in "
                f"{done.dtype}, so its answers differ a little from those of training: evaluate the merged model."
            )
        self._compare_logits(base, adapter, folder, tokenizer, exact=done.dtype == "float32")
        self._stretch(folder)
        return tokenizer

    def _stretch(self, folder: Path) -> None:
        """Write the rotary positions of the training into a folder's configuration."""
        if (scaling := self.source.positions) is None:
            return
        from transformers import AutoConfig

        from mcp_rl.backends.base.transformers_loader import with_positions

        place = folder / "config.json"
        text = with_positions(AutoConfig.from_pretrained(folder), scaling).get_text_config()
        content = json.loads(place.read_bytes())
        content.pop("rope_scaling", None)
        content.pop("rope_theta", None)  # rope_parameters holds both
        content |= {"rope_parameters": text.rope_parameters, "max_position_embeddings": text.max_position_embeddings}
        place.write_text(json.dumps(content, indent=2) + "\n")

    def _weights(self) -> tuple[Path, Path | None]:
        """Return the folder of the initial weights, and that of the adapter."""
        source = self.source
        if source.kind == "whole":
            assert source.checkpoint is not None
            return source.checkpoint, None
        return source.base_folder(), source.checkpoint

    def _compare_logits(self, base: Path, adapter: Path | None, folder: Path, tokenizer: Any, *, exact: bool) -> None:
        """Measure how far the logits moved. Raises CheckpointError where they are not the policy's."""
        import psutil

        from mcp_rl.learning.disk.merge import exact_dtype, logit_difference

        free = psutil.virtual_memory().available
        computed = exact_dtype(base, free)
        if computed is None:
            self.notes.append(
                f"The logits were not compared: two models in float32 do not fit into {free / 1e9:.0f} GB of free "
                "memory."
            )
            return
        difference = logit_difference(base, adapter, folder, tokenizer(_PROBE)["input_ids"], computed)
        self.found |= {"logit_difference": difference.largest, "same_first_token": difference.same_first}
        if exact and not difference.largest <= MOST_DIFFERENT:
            raise CheckpointError(
                f"The logits of the merged weights differ from the adapter's by {difference.largest:.2g}, so nothing "
                "was written: check that the base is the one that the adapter was trained on."
            )
        lost = self.found["update_lost"]
        rounding = f"; rounding to {self.found['dtype']} changed {100 * lost:.2g} % of the update" if lost else ""
        before = "base and adapter" if adapter is not None else "the weights that were trained"
        self.notes.append(
            f"The logits of a text, computed in {computed}, differ from those of {before} by at most "
            f"{difference.largest:.2g}{rounding}."
        )

    def _tokenizer(self, folder: Path) -> Any:
        """Write the tokenizer's files, the chat template and generation_config.json."""
        from mcp_rl.backends.base.base_model import load_tokenizer
        from mcp_rl.learning.disk.merge import generation_config
        from mcp_rl.learning.disk.state import tokenizer_files

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
        """Return the folder that holds config.json; None where an adapter's base is not on this machine."""
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
        if tools := self.trained.tools:
            contents = replace(contents, has_tools=True, has_system_prompt=bool(tools.system_prompt))
        chat = self._chat(folder)
        if chat is not None:
            contents = replace(contents, parser=chat.dialect.spoken)
            if chat.in_prompt:
                self.notes.append(
                    "Its tools were told in the system prompt (chat.format=hermes), which its chat template does not "
                    "do: give them so wherever it is served, or serve it with `mcp-rl serve`."
                )
        card = without_secrets(model_card(self.source, self.proof, contents))
        (folder / "README.md").write_text(card, encoding="utf-8")

    def _chat(self, folder: Path) -> ChatFormat | None:
        """Return the chat format of what is exported; None if its files do not say."""
        settings = loaded_for(self.source.checkpoint).get(CHAT)
        try:
            return chat_of_files(str(folder), settings if isinstance(settings, dict) else {})
        except ConfigError:
            return None


def _tokenizer_names(folder: Path) -> list[str]:
    """List the tokenizer's files in a model's folder."""
    known = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges")
    return [
        path.name for path in folder.iterdir() if path.name.startswith(known) and not path.name.endswith(".safetensors")
    ]
