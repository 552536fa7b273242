"""The chat format of a base model by its files, before anything is loaded."""

import json
import shutil
from pathlib import Path

import pytest

from mcp_rl.backends.base.base_name import check_base_model
from mcp_rl.backends.base.chat_files import chat_of_files
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in weights_path().iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, tmp_path)
    return tmp_path


def test_a_good_models_format_is_known_by_its_files(folder: Path) -> None:
    chat = chat_of_files(str(folder), {"format": "auto"})
    assert chat is not None and chat.dialect.name == "hermes" and chat.notes == []
    assert chat.decode(chat.said("It is 3.")) == "It is 3."
    told = chat_of_files(str(folder), {"format": "hermes"})
    assert told is not None and not told.in_prompt, "its own format is Hermes already"


def test_a_base_model_is_one_sentence(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="has no chat template, as a base model's has none; use a chat model"):
        chat_of_files(str(folder), {})


def test_a_template_without_tools_is_one_sentence(folder: Path) -> None:
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    plain += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (folder / "chat_template.jinja").write_text(plain)
    with pytest.raises(ConfigError, match=r"leaves the tools out of the prompt: set chat\.format=hermes"):
        chat_of_files(str(folder), {})
    told = chat_of_files(str(folder), {"format": "hermes"})
    assert told is not None and "is told its tools in the system prompt" in told.notes[0]


def test_ends_of_another_model_are_one_sentence(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [128009]}))
    with pytest.raises(ConfigError, match=r"ends its turns at token 128009 by its generation_config\.json, and its"):
        chat_of_files(str(folder), {})


def test_a_folder_that_would_load_another_base_is_one_sentence(folder: Path) -> None:
    check_base_model(str(folder))
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="name that base, and begin with the adapter by --init"):
        check_base_model(str(folder))
