"""Run llama.cpp's convert_hf_to_gguf.py; a script of its own, for a Python that need not have this package.

    python convert.py path/to/convert_hf_to_gguf.py [the converter's arguments]

The converter knows a BPE tokenizer by a hash of its output for a test text, and refuses every vocabulary that it has
not seen. All it needs to know is how text is split into words: where a tokenizer.json splits as Qwen2, Llama 3 or GPT-2
do, this script tells it so.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {rf"{_WORDS}\p{{N}}{_REST}": "qwen2", rf"{_WORDS}\p{{N}}{{1,3}}{_REST}": "llama-bpe"}
"""Regular expressions that split words, to llama.cpp's names for them."""


def split_of(tokenizer: Path) -> str | None:
    """Return llama.cpp's name for how a tokenizer.json splits words; None for a split that it does not know."""
    about = json.loads(tokenizer.read_bytes()).get("pre_tokenizer") or {}
    steps: list[dict[str, Any]] = about.get("pretokenizers") or [about]
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    if len(patterns) == 1:
        return SPLITS.get(patterns[0])
    return (
        "gpt-2" if [step.get("type") for step in steps] == ["ByteLevel"] and steps[0].get("use_regex", True) else None
    )


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", script)
    assert spec is not None and spec.loader is not None
    converter = importlib.util.module_from_spec(spec)
    sys.modules["convert_hf_to_gguf"] = converter
    spec.loader.exec_module(converter)
    for name in ("conversion.base", "convert_hf_to_gguf"):  # newer and older versions
        try:
            model = getattr(importlib.import_module(name), "TextModel", None)
        except ImportError:
            continue
        if hasattr(model, "get_vocab_base_pre"):
            _teach(model)
            break
    converter.main()


def _teach(model: Any) -> None:
    known = model.get_vocab_base_pre

    def get_vocab_base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return str(known(self, tokenizer))
        except NotImplementedError:
            found = split_of(Path(self.dir_model) / "tokenizer.json")
            if found is None:
                raise
            return found

    model.get_vocab_base_pre = get_vocab_base_pre


if __name__ == "__main__":
    main()
