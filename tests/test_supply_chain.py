"""Pinned packages have hashes, and are looked up in a database of known vulnerabilities."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"].removeprefix("https://github.com/")
PIN = re.compile(r"^([\w.-]+)==([^ \n]+)", re.MULTILINE)


def pins(*names: str) -> dict[str, str]:
    found = [pair for file in names for pair in PIN.findall((ROOT / file).read_text())]
    return {name.replace(".", "-"): version for name, version in found}


def test_every_pin_has_its_hashes() -> None:
    hashed = pins("requirements-hashed.txt", "requirements-torch-hashed.txt")
    differing = {name for name, version in pins("constraints.txt").items() if hashed.get(name) != version}
    assert not differing, "run `make lock`"
    assert pins("requirements-hashed.txt").keys() == pins("constraints.txt").keys() - {"torch"}
    for file in ("requirements-hashed.txt", "requirements-torch-hashed.txt"):
        for entry in re.split(r"\n(?=\w)", (ROOT / file).read_text().partition("\n")[2]):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_uv_installs_with_the_configuration_of_pip_and_pip_where_it_cannot(tmp_path: Path) -> None:
    wheels, where = tmp_path / "wheels", tmp_path / "environment"
    wheels.mkdir()
    for version in ("1.0", "1.1"):
        with zipfile.ZipFile(wheels / f"made_up-{version}-py3-none-any.whl", "w") as wheel:
            about = f"Metadata-Version: 2.1\nName: made-up\nVersion: {version}\n"
            wheel.writestr(f"made_up-{version}.dist-info/METADATA", about)
            wheel.writestr(
                f"made_up-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"made_up-{version}.dist-info/RECORD", "")
    (tmp_path / "constraints").write_text("made-up<1.1\n")
    subprocess.run([sys.executable, "-m", "venv", "--symlinks", where], check=True)
    for more, installer in (("", "uv"), ("no-index = true\n", "pip")):
        (tmp_path / "pip.conf").write_text(
            f"[global]\nfind-links = {wheels}\nconstraint = {tmp_path / 'constraints'}\n{more}"
        )
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
        environment = {**plain, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
        (where / "bin" / "uv").unlink(missing_ok=True)
        (where / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
        install = [sys.executable, ROOT / ".ci/install.py", where, "--quiet", "made-up"]
        subprocess.run(install, env=environment, check=True)
        [about] = where.glob("lib/*/site-packages/made_up-*.dist-info")
        assert (about.name, (about / "INSTALLER").read_text().strip()) == ("made_up-1.0.dist-info", installer)
        shutil.rmtree(about)


def test_workflows_pin_actions_and_may_only_read() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 3
    for path in workflows:
        text = path.read_text()
        for used in re.findall(r"uses: (.+)", text):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+|\./\.github/workflows/\w+\.yml", used), used
        assert re.search(r"^permissions:\n  contents: read\n\n", text, re.MULTILINE), path
        for extra in re.findall(r"^      [\w-]+: write.*", text, re.MULTILINE):
            assert " # " in extra, f"{path.name} says not why it needs {extra.strip()}"
        for version in re.findall(r"uv==([\d.]+)", text):
            assert version == pins("constraints.txt")["uv"]
        assert "secrets." not in text


def test_a_release_has_notes_and_one_version(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    for name in (".ci/notes", "pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    changes = (ROOT / "CHANGELOG.md").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    def notes(tag: str) -> tuple[str, str]:
        done = subprocess.run([sys.executable, ".ci/notes", tag], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout, done.stderr

    assert "The tag is v99.0.0, but pyproject.toml has" in notes("v99.0.0")[1]
    (tmp_path / "CHANGELOG.md").write_text(changes.replace("## [Unreleased]", f"## [{version}] - 2026-12-01", 1))
    printed, said = notes(f"v{version}")
    assert said == "" and "### Added" in printed and "[Unreleased]:" not in printed and "# Changelog" not in printed


@pytest.fixture
def database() -> Iterator[str]:
    """The address of a database in which version 1.0 of anything has a vulnerability."""

    class Osv(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = asked["package"]["name"]
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]
            affected = {"package": {"name": name, "ecosystem": "PyPI"}, "versions": ["1.0"], "ranges": ranges}
            known = {"id": "OSV-1", "summary": "Made up.", "modified": "2026-01-01T00:00:00Z", "affected": [affected]}
            answer = json.dumps({"vulns": [known]} if asked["version"] == "1.0" else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not (ROOT / ".venv-audit/.ready").exists(), reason="`make audit` installs the tool")
def test_a_known_vulnerability_is_red_and_no_database_is_a_line(database: str, tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text(f"some-package==1.0 --hash=sha256:{'0' * 64}\n")
    (tmp_path / "newer.txt").write_text(f"some-package==1.1 --hash=sha256:{'0' * 64}\n")
    nowhere = "http://127.0.0.1:9/v1/query"
    expected = (
        ("pins.txt", database, 1, "OSV-1"),
        ("newer.txt", database, 0, "No known vulnerability"),
        ("newer.txt", nowhere, 0, "Left out: the database of vulnerabilities cannot be reached"),
        ("there-is-none.txt", database, 1, "there-is-none.txt"),
    )
    started = [
        subprocess.Popen(
            [str(ROOT / ".ci/audit"), str(tmp_path / file)],
            env={"OSV_URL": url, "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for file, url, _, _ in expected
    ]
    for audit, (_, _, code, says) in zip(started, expected, strict=True):
        said, _ = audit.communicate()
        assert audit.returncode == code and says in said, said


def test_the_repositorys_address_stands_where_contributing_says() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The repository's address")[2]
    files = dict(texts())
    named = files.keys() & set(re.findall(r"`([\w./]+\.\w+)`", told.partition("\n## ")[0]))
    owner, _, name = REPOSITORY.partition("/")
    addresses = (f"{REPOSITORY}/", f"github.com/{REPOSITORY}", f"{owner}.github.io/{name}")
    found = {path for path, text in files.items() if any(address in text for address in addresses)}
    assert found == named | {"CONTRIBUTING.md"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every file of the repository that could hold an address."""
    for folder in (".", ".github", "docs", "examples", "mcp_rl", "plugins", "servers", "tests"):
        for path in (ROOT / folder).glob("*" if folder == "." else "**/*"):
            if (
                path.suffix in (".md", ".toml", ".cff", ".yml", ".py", ".ipynb", ".html")
                and "node_modules" not in path.parts
            ):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_every_link_of_the_readme_is_whole_on_pypi() -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for substitution in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    links = [one or other for one, other in re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', text)]
    assert len(links) > 20 and all(link.startswith(("https://", "#")) for link in links)
    ours = re.compile(rf"https://(?:github|raw\.githubusercontent)\.com/{REPOSITORY}/(?:blob/)?main/([^#]+)")
    assert all((ROOT / found[1]).exists() for link in links if (found := ours.match(link)))
    assert any("raw.githubusercontent.com" in link and link.endswith(".png") for link in links)
