"""The interfaces to other programs: llama.cpp's converter, Ollama and its templates."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mcp_rl.cli import main
from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError
from mcp_rl.runs.export.convert import split_of
from mcp_rl.runs.export.gguf import ambiguous
from mcp_rl.runs.export.ollama import modelfile, ollama_name
from mcp_rl.tiny import weights_path

HERE = Path(__file__).parent
MODELFILE = HERE.parents[1] / "data" / "export" / "tiny.Modelfile"

CONVERTER = """
import sys
class TextModel:
    def __init__(self, dir_model): self.dir_model = dir_model
    def get_vocab_base_pre(self, tokenizer): raise NotImplementedError("BPE pre-tokenizer was not recognized")
def main():
    folder, _, out, _, kind = sys.argv[1:]
    with open(out, "w") as file: file.write(f"{kind} {TextModel(folder).get_vocab_base_pre(None)}")
if __name__ == "__main__":
    main()
"""
"""A stand-in for llama.cpp's converter, as far as its callers see."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole PATH, with a converter that does not know the tokenizer."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("MCP_RL_GGUF_CONVERTER", str(folder))
    (folder / "convert_hf_to_gguf.py").write_text(CONVERTER)
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


def test_the_converter_learns_an_unknown_tokenizers_split(programs: Path, tmp_path: Path) -> None:
    assert main(["export", TINY, "--format", "gguf", "--quantise", "q8_0", "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x" / "model.gguf").read_text() == "q8_0 qwen2"
    names = {path.name for path in (tmp_path / "x").iterdir()}
    assert {"README.md", "chat_template.jinja", "tokenizer.json", "generation_config.json", "manifest.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)


def test_an_unknown_split_gets_no_name(tmp_path: Path) -> None:
    about = json.loads((weights_path() / "tokenizer.json").read_text())
    assert split_of(weights_path() / "tokenizer.json") == "qwen2"
    about["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\s+"
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    assert split_of(tmp_path / "tokenizer.json") is None
    (tmp_path / "tokenizer.json").write_text(json.dumps({**about, "pre_tokenizer": {"type": "ByteLevel"}}))
    assert split_of(tmp_path / "tokenizer.json") == "gpt-2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import no_such_package", "needs the Python package no_such_package, which is not installed"),
        ("def main():\n    raise ValueError('Model Foo is not supported')", "Model Foo is not supported"),
    ],
)
def test_converter_errors_are_one_sentence(
    text: str, sentence: str, programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "convert_hf_to_gguf.py").write_text(text)
    code = main(["export", TINY, "--format", "gguf", "--out", str(tmp_path / "x")])
    said = capsys.readouterr().err
    assert code == 2 and sentence in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_missing_quantiser_is_named_first(programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", TINY, "--format", "gguf", "--quantise", "Q4_K_M", "--out", str(tmp_path / "x")]) == 2
    assert "llama-quantize, which is not on the PATH" in capsys.readouterr().err
    program(programs / "llama-quantize", "import sys; open(sys.argv[2], 'w').write(sys.argv[3])")
    assert main(["export", TINY, "--format", "gguf", "--quantise", "Q4_K_M", "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x" / "model.gguf").read_text() == "Q4_K_M"
    assert not (tmp_path / "x" / "model.f16.gguf").exists()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["<|a|>", "<|b|>"], None),
        (["\n\n", "\n\n\n", "\n\n\n\n"], None),
        (["12", "20"], "120"),
        (["ab", "bc", "abc"], None),
        (["abc", "cd"], None),
    ],
)
def test_tokens_that_llama_cpp_may_reorder_are_named(tokens: list[str], text: str | None, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"added_tokens": [{"content": token} for token in tokens]}))
    assert ambiguous(tmp_path / "t.json") == text


def test_every_end_of_a_turn_stops_ollama() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    text = modelfile(tokenizer, ".", positions=64, license=None, ends=[tokenizer.eos_token_id, 0, 10**6])
    stops = [line for line in text.splitlines() if line.startswith("PARAMETER stop ")]
    assert stops == [
        f'PARAMETER stop "{tokenizer.eos_token}"',
        f'PARAMETER stop "{tokenizer.convert_ids_to_tokens(0)}"',
    ]


def test_without_ollama_the_command_to_run_is_printed(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", TINY, "--format", "ollama", "--out", str(tmp_path / "x")]) == 0
    assert "ollama create tiny:latest -f Modelfile" in capsys.readouterr().out
    assert (tmp_path / "x" / "Modelfile").read_text() == MODELFILE.read_text()
    assert (tmp_path / "x" / "model.gguf").is_file()


def test_without_a_converter_ollama_gets_safetensors(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_RL_GGUF_CONVERTER")
    assert main(["export", TINY, "--format", "ollama", "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x" / "Modelfile").read_text().startswith("FROM .\n")
    assert (tmp_path / "x" / "model.safetensors").is_file() and (tmp_path / "x" / "config.json").is_file()


def test_ollama_models_are_created_and_never_replaced(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls"
    program(
        programs / "ollama",
        f"import sys; open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        "print('NAME ID SIZE\\nother:latest 1 2')",
    )
    words = ["export", TINY, "--format", "ollama", "--out", str(tmp_path / "x")]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ollama"] == "tiny:latest"
    assert calls.read_text().splitlines() == ["list", f"create tiny:latest -f {tmp_path / 'x'}/Modelfile"]
    program(programs / "ollama", "import sys; assert sys.argv[1] == 'list'; print('NAME\\ntiny:latest 1 2')")
    shutil.rmtree(tmp_path / "x")
    assert main(words) == 0
    assert "has a model tiny:latest already, which was kept" in capsys.readouterr().out


def test_an_export_survives_a_failing_ollama(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(programs / "ollama", "import sys; sys.exit('Error: could not connect to ollama server')")
    assert main(["export", TINY, "--format", "ollama", "--out", str(tmp_path / "x")]) == 0
    said = capsys.readouterr().out
    assert (
        "was not created. `ollama list` failed: Error: could not connect to ollama server. Once that is fixed" in said
    )
    assert "&& ollama create tiny:latest -f Modelfile" in said and (tmp_path / "x" / "Modelfile").is_file()


def test_model_names_suit_ollama() -> None:
    assert ollama_name("My Run@80") == "my-run:80"
    assert ollama_name("/a/b/Calc") == "calc:latest"


def test_other_chat_templates_are_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}"
    with pytest.raises(ConfigError, match=r"does not write .* as Hermes does"):
        modelfile(tokenizer, ".", positions=64, license=None)


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_go_renders_like_the_models_template(tmp_path: Path) -> None:
    subprocess.run(["go", "build", "-o", str(tmp_path / "render"), str(HERE / "render.go")], check=True)
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    template = MODELFILE.read_text().split('"""')[1]

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}

    user, more = {"role": "user", "content": "U1"}, {"role": "user", "content": "U2"}
    results = [{"role": "tool", "content": text} for text in ("R1", "R2")]
    one = {"role": "assistant", "content": "", "tool_calls": [call("f", a=1)]}
    two = {"role": "assistant", "content": "So:", "tool_calls": [call("f", a=1), call("g", b="x")]}
    answer = {"role": "assistant", "content": "A"}
    talks: list[list[dict[str, Any]]] = [
        [user],
        [user, answer, more],
        [user, one, results[0]],
        [user, two, *results, answer, more],
    ]
    schemas = [{"name": name, "description": "d", "parameters": {"type": "object"}} for name in "fg"]
    for talk, count, system in itertools.product(talks, (0, 1, 2), ("", "Be brief.")):
        messages = [*([{"role": "system", "content": system}] if system else []), *talk]
        tools: list[Any] = [{"type": "function", "function": schema} for schema in schemas[:count]]
        wanted = tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
        given = {
            "Template": template,
            "System": system,
            "Tools": [{"Function": json.dumps(schema)} for schema in schemas[:count]],
            "Messages": [
                {
                    "Role": m["role"],
                    "Content": m["content"],
                    "ToolCalls": [
                        {"Function": {"Name": f["name"], "Arguments": json.dumps(f["arguments"])}}
                        for f in (c["function"] for c in m.get("tool_calls", []))
                    ],
                }
                for m in messages
            ],
        }
        done = subprocess.run(
            [tmp_path / "render"], input=json.dumps(given), capture_output=True, text=True, check=True
        )
        assert done.stdout == wanted


@pytest.mark.skipif("MCP_RL_GGUF_CONVERTER" not in os.environ, reason="llama.cpp's converter is not named")
def test_the_real_converter_writes_the_built_in_model(tmp_path: Path) -> None:
    assert main(["export", TINY, "--format", "gguf", "--quantise", "f32", "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x" / "model.gguf").read_bytes()[:4] == b"GGUF"
