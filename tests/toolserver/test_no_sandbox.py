"""Machines that refuse a sandbox or have a full disk: one sentence, copies where these are possible, nothing left.

A namespace in which the kernel is made to refuse stands in for such a machine.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl.system.processes.spawn import SANDBOXED
from mcp_rl.toolserver.sandbox.obstacle import obstacle

ROOT = Path(__file__).parents[2]
SERVER = Path(__file__).with_name("files_server.py")
REFUSED = "echo 0 > /proc/sys/user/max_user_namespaces"
DEEP = (
    "mount -t tmpfs none {0} && cd {0} && mkdir l u w m v x n && O='-t overlay none -o userxattr' && "
    "mount $O,lowerdir=l,upperdir=u,workdir=w m && mount $O,lowerdir=m,upperdir=v,workdir=x n && "
    f"cd {ROOT} && export TMPDIR={{0}}/n"
)
SMALL_DISK = "mount -t tmpfs -o size=64k none {0} && export TMPDIR={0}"
FULL_DISK = f"{SMALL_DISK} && ! head -c 99999 /dev/zero > {{0}}/full && mount --bind {{0}} /var/tmp"
NOWHERE = f"{FULL_DISK} && mount --rbind /tmp /tmp && mount -o remount,ro,bind /tmp && cd /proc"
TRIAL = f"""
import errno, os, sys
sys.path.insert(0, {str(SANDBOXED.parent)!r})
import layer_tree, layered, sandboxed
given = layered.mount
def mount(source, target, kind, flags, options):
    %s
layered.mount = layer_tree.mount = mount
print(sandboxed._obstacle())
"""
NO_USER_XATTRS = 'given(source, target, *(("ramfs", flags, None) if kind == "tmpfs" else (kind, flags, options)))'
"""Like tmpfs before Linux 6.6, ramfs keeps none."""
NO_OVERLAYS = """if kind == "overlay": raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), target)
    given(source, target, kind, flags, options)"""


def run(setting: str, folder: Path, *words: str) -> tuple[int, str, str]:
    """Run a command on a machine that is prepared by a shell line; return its exit code and what it printed."""
    folder.mkdir()
    line = f"{setting.format(folder)} && echo prepared >&2 && exec {shlex.join(words)}"
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    said = done.stderr
    if "prepared\n" not in said:
        pytest.skip(f"unshare and mount cannot prepare this here: {said[-200:]}")
    return done.returncode, done.stdout, said.partition("prepared\n")[2]


def python(line: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {line}")


@pytest.mark.parametrize(
    ("setting", "clause"),
    [
        (REFUSED, "this kernel or container allows no more namespaces (No space left on device)"),
        (DEEP, "this kernel mounts no overlay there (Invalid argument"),
        (NOWHERE, "no temporary folder can be made to try one in (No "),
    ],
)
def test_what_the_machine_refuses_is_one_clause(setting: str, clause: str, tmp_path: Path) -> None:
    asked = "from mcp_rl.toolserver.sandbox.obstacle import obstacle; print(obstacle())"
    _, said, _ = run(setting, tmp_path / "disk", *python(asked))
    assert said.startswith(clause) and said.count("\n") == 1


@pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")
@pytest.mark.parametrize(
    ("kernel", "clause"),
    [
        (NO_USER_XATTRS, "overlays of this kernel cannot replace a directory"),
        (NO_OVERLAYS, "this kernel has no overlay file system (No such device"),
    ],
)
def test_what_a_kernel_lacks_is_found_out_by_trying(
    kernel: str, clause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tmp_path / "trial.py"
    trial.write_text(TRIAL % kernel)
    monkeypatch.setattr("mcp_rl.toolserver.sandbox.obstacle.SANDBOXED", trial)
    assert (obstacle.__wrapped__() or "").startswith(clause)


def inspecting(folder: Path) -> tuple[str, ...]:
    """Return a command that inspects the server, and then prints what is left in the temporary folder."""
    server = shlex.join([sys.executable, str(SERVER), str(folder), "made.txt"])
    return python(
        "import os; from mcp_rl.cli import main; "
        f"code = main(['servers', 'inspect', {server!r}]); print(os.listdir(os.environ['TMPDIR'])); sys.exit(code)"
    )


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "a.txt").write_text("the user's " * 10_000)
    return folder


def test_copies_that_do_not_fit_on_the_disk_are_one_sentence(user: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    code, shown, said = run(f"{SMALL_DISK} && {REFUSED}", disk, *inspecting(user))
    assert code == 2 and said.count("\n") == 1
    assert "needs copies of the files that it is pointed at, since this kernel or container allows no more" in said
    assert f"and the disk under {disk} is full; make room there, or set TMPDIR" in said
    assert shown == "[]\n" and [path.name for path in user.iterdir()] == ["a.txt"]


def test_a_full_disk_is_nothing_to_a_layer(user: Path, tmp_path: Path) -> None:
    code, shown, said = run(FULL_DISK, tmp_path / "disk", *inspecting(user))
    assert code == 0 and "List all files." in shown and not said
    assert shown.endswith("['full']\n") and [path.name for path in user.iterdir()] == ["a.txt"]
