"""Write GGUF files with llama.cpp's own converter and quantiser."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mcp_rl.errors import ConfigError
from mcp_rl.system.redaction import is_secret_name

CONVERTER = "MCP_RL_GGUF_CONVERTER"
"""The variable that names the converter."""
_NAMES = ("convert_hf_to_gguf.py", "convert_hf_to_gguf", "convert-hf-to-gguf.py")
_CONVERTER_TYPES = ("f32", "f16", "bf16", "q8_0")
"""Types that the converter writes itself; llama-quantize makes the others."""
_QUANTISED = re.compile(r"i?q[1-8]_([01k]|k_[sml]|xxs|xs|s|m|nl)|tq[12]_0")
_DRIVER = Path(__file__).with_name("convert.py")


@dataclass(frozen=True)
class Converter:
    """The converter of llama.cpp on this machine."""

    command: tuple[str, ...]
    """The command, without the model's folder and the options."""


def check_type(kind: str) -> str:
    """Return the type of a GGUF file's weights as llama.cpp writes it. Raises ConfigError for an unknown type."""
    lower = kind.lower()
    if lower not in _CONVERTER_TYPES and not _QUANTISED.fullmatch(lower):
        raise ConfigError(
            f"--quantise must be a type of llama.cpp, such as {', '.join(_CONVERTER_TYPES)} or q4_k_m, not {kind}."
        )
    return lower


def find_converter(given: Path | None) -> Converter:
    """Return the converter that is named, else that of the variable, else the one on the PATH.

    Raises ConfigError, one sentence with how to get it, where there is none.
    """
    named = given or (Path(os.environ[CONVERTER]) if os.environ.get(CONVERTER) else None)
    if named is not None:
        place = named.expanduser()
        script = place / _NAMES[0] if place.is_dir() else place
        if not script.is_file():
            raise ConfigError(
                f"The converter {script} does not exist: name llama.cpp's convert_hf_to_gguf.py or its folder."
            )
        return _command(script)
    for name in _NAMES:
        if found := shutil.which(name):
            return _command(Path(found))
    raise ConfigError(
        "GGUF files are written by llama.cpp's convert_hf_to_gguf.py, which is not on the PATH: "
        "`git clone --depth 1 https://github.com/ggml-org/llama.cpp`, `pip install sentencepiece`, and name the file "
        f"with --converter or {CONVERTER}."
    )


def check_quantiser(kind: str) -> None:
    """Raise ConfigError if `kind` needs llama-quantize and it is not on the PATH."""
    if kind not in _CONVERTER_TYPES and shutil.which("llama-quantize") is None:
        raise ConfigError(
            f"A GGUF file of type {kind} is made by llama.cpp's llama-quantize, which is not on the PATH: install "
            f"llama.cpp, or use {' or '.join(_CONVERTER_TYPES[1:])}."
        )


def write_gguf(converter: Converter, model: Path, out: Path, kind: str) -> None:
    """Convert the model in the folder `model` into `out`. Raises ConfigError with the last line of the converter's
    errors."""
    direct = kind in _CONVERTER_TYPES
    first = out if direct else out.with_suffix(".f16.gguf")
    _run([*converter.command, str(model), "--outfile", str(first), "--outtype", kind if direct else "f16"], model)
    if not direct:
        _run(["llama-quantize", str(first), str(out), kind.upper()], model)
        first.unlink()


def ambiguous(tokenizer: Path) -> str | None:
    """Return a text in which two added tokens of a tokenizer.json overlap, or None.

    The tokenizers library takes the token that begins first. llama.cpp searches for one token after the other, long
    ones first, so it may find the second token before the first.
    """
    try:
        entries = json.loads(tokenizer.read_bytes()).get("added_tokens") or []
    except (OSError, ValueError):
        return None
    added = {str(entry["content"]) for entry in entries}
    begun: dict[str, list[str]] = {}
    for token in sorted(added):
        for end in range(1, len(token)):
            begun.setdefault(token[:end], []).append(token)
    found = []
    for first in added:
        for begin in range(1, len(first)):
            for second in begun.get(first[begin:], ()):
                text = first + second[len(first) - begin :]
                longer = any(text[:end] in added for end in range(len(first) + 1, len(text) + 1))
                if len(second) >= len(first) and text.find(second) == begin and not longer:
                    found.append(text)
    return min(found, key=lambda text: (len(text), text), default=None)


def _command(script: Path) -> Converter:
    """Return the command of a converter: its own interpreter runs it if it names one, else this Python."""
    first = script.read_bytes()[:200].partition(b"\n")[0]
    own = first.startswith(b"#!") and b"/env " not in first and os.access(script, os.X_OK)
    if script.suffix == ".py" or (first.startswith(b"#!") and b"python" in first):
        python = first[2:].decode(errors="replace").split()[0] if own else sys.executable
        return Converter((python, str(_DRIVER), str(script)))
    return Converter((str(script),))


def _run(command: list[str], model: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**environment, "HF_HUB_OFFLINE": "1"})
    except OSError as error:
        raise ConfigError(f"Cannot run {command[0]}: {error.strerror or error}.") from error
    if done.returncode:
        name = "llama-quantize" if command[0] == "llama-quantize" else "The converter of llama.cpp"
        raise ConfigError(f"{name} {_explain(done.stderr, model)}")


def _explain(said: str, model: Path) -> str:
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()] or ["it said nothing"]
    last = lines[-1].replace(str(model), "the model")[:300]
    if "pre-tokenizer was not recognized" in said:
        return "does not know how this model's tokenizer cuts text into words, so it cannot write a GGUF file."
    if missing := re.search(r"No module named '([\w.]+)'", last):
        return f"needs the Python package {missing[1]}, which is not installed: pip install {missing[1].split('.')[0]}."
    return f"could not convert the model: {last.rstrip('.')}."
