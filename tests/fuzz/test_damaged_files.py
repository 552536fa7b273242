"""A damaged file is one sentence for its user, whatever the damage."""

import json
import random
from pathlib import Path

import pytest

from tests.fuzz.files import FILES, SCENARIO, check, damage, damaged, say


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, ending, command = FILES[name]
    drawn = random.Random(name)
    file = tmp_path / f"file{ending}"
    file.write_bytes(content)
    code, said = say([*command, str(file)])
    assert code == 0, f"the good one is not read: {said}"
    for _ in range(12):
        if file.is_dir():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        damage(file, drawn)
        check([*command, str(file)])


def test_damage_reaches_every_kind_of_place() -> None:
    """Else the test above would say nothing."""
    drawn = random.Random(0)
    made = {damaged(json.dumps(SCENARIO).encode(), drawn) for _ in range(300)}
    assert len(made) > 200
    for place in SCENARIO:
        assert any(f'"{place}"'.encode() not in one for one in made), f"{place} is never gone"
