"""Changes of several episodes to files under a layer, at random; run in namespaces of its own by `test_layers.py`.

After each turn, an episode must find all as it left it, and a new one all as it was at the mark.
"""

import random
import shutil
import stat
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "mcp_rl/system/processes"))
from layered import MARK, Layers

Seen = dict[str, tuple[int, bytes, int]]
NAMES = ("a", "b", "c")


def seen(folder: Path) -> Seen:
    """Return all that the folder shows: modes, contents, and the times of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        plain = stat.S_ISREG(status.st_mode)
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            path.read_bytes() if plain else b"",
            status.st_mtime_ns if plain else 0,
        )
    return found


def change(folder: Path, chance: random.Random) -> None:
    """Make one change, if it is possible."""
    directories = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    path = chance.choice(directories) / chance.choice(NAMES)
    other = chance.choice(directories) / chance.choice(NAMES)
    try:
        match chance.choice(("write", "write", "make", "remove", "remove", "rename", "mode")):
            case "write":
                path.write_text(str(chance.random()))
            case "make":
                path.mkdir()
            case "remove":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            case "rename":
                path.rename(other)
            case "mode":
                path.chmod(chance.choice((0o700, 0o711, 0o755)))
    except OSError:
        pass


def play(folder: Path, seed: int, marked: bool) -> None:
    chance = random.Random(seed)
    layers = Layers(str(folder), 2**24)
    for _ in range(6 if marked else 0):
        change(folder, chance)
    layers.do("mark")
    beginning = seen(folder)
    states: dict[str, Seen] = {}
    inside: str | None = None
    for number in range(1, 60):
        leaving = str(number) if inside is None or chance.random() < 0.2 else inside
        leaving = MARK if chance.random() < 0.2 else leaving
        if leaving != MARK:
            states[leaving] = seen(folder)
        elif inside is not None:
            states.pop(inside, None)
        others = [name for name in states if name != leaving]
        coming = chance.choice(others) if others and chance.random() < 0.7 else MARK
        gone = [name for name in others if name != coming and chance.random() < 0.1]
        layers.do(" ".join(("turn", leaving, coming, *gone)))
        for name in gone:
            del states[name]
        expected = states.pop(coming) if coming != MARK else beginning
        assert seen(folder) == expected, f"seed {seed}, turn {number}: {seen(folder)} instead of {expected}"
        inside = coming if coming != MARK else None
        for _ in range(chance.randrange(5)):
            change(folder, chance)
    layers.do("throw-away")
    assert seen(folder) == beginning and layers.do("changed") == "no", f"seed {seed}: {seen(folder)}"


if __name__ == "__main__":
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    for inner in ("a", "b", "a/a", "a/b"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    for inner in ("c", "a/c", "b/c", "a/b/c"):
        (folder / inner).write_text("the user's")
    play(folder, number, marked=number % 2 == 1)
