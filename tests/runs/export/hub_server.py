"""A hub on loopback: what huggingface_hub's client asks for to find, create and fill repositories.

    with hub_server() as hub: ... hub.url, hub.repositories["model/me/calc"].files

Checks what the real hub checks of an upload: the token and its role, the card's YAML, the size and hash of each large
file, the parent commit. `hub.fails_at` names a part of a path at which it answers 500.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from huggingface_hub import RepoCard

LARGE = (".safetensors", ".gguf")
TOKENS = {"hf_Writes0123456789abcdef": "write", "hf_Reads0123456789abcdefg": "read"}


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b""})
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


@dataclass
class Hub:
    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    """By `model/OWNER/NAME` or `dataset/OWNER/NAME`."""
    large: dict[str, bytes] = field(default_factory=dict)
    fails_at: str | None = None


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    def page(name: str) -> str:
        kind, _, rest = name.partition("/")
        return f"{hub.url}/{'datasets/' if kind == 'dataset' else ''}{rest}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self, code: int, content: Any = None, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, code: int, why: str, kind: str = "") -> None:
            self.answer(code, {"error": why}, x_error_message=why, **({"x_error_code": kind} if kind else {}))

        def handle_any(self) -> None:
            path = self.path.partition("?")[0]
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            role = TOKENS.get((self.headers.get("authorization") or "").removeprefix("Bearer "))
            if hub.fails_at and hub.fails_at in path:
                self.refuse(500, "The disk of the hub is full")
            elif role is None and not path.startswith("/large/"):
                self.refuse(401, "Invalid credentials")
            elif role == "read" and self.command == "POST" and path != "/api/validate-yaml":
                self.refuse(403, "This token may only read")
            else:
                self.route(path, body, role)

        do_GET = do_HEAD = do_POST = do_PUT = handle_any

        def route(self, path: str, body: bytes, role: str | None) -> None:
            parts = path.strip("/").split("/")
            match [self.command, *parts]:
                case ["GET", "api", "whoami-v2"]:
                    token = {"accessToken": {"role": role}}
                    self.answer(200, {"name": "me", "orgs": [{"name": "our-lab"}], "auth": token})
                case ["POST", "api", "repos", "create"]:
                    self.create(json.loads(body))
                case ["POST", "api", "validate-yaml"]:
                    told = RepoCard(json.loads(body)["content"]).data.to_dict()
                    errors = [] if told else [{"message": "The card has no metadata"}]
                    self.answer(400 if errors else 200, {"errors": errors, "warnings": []})
                case ["PUT", "large", oid]:
                    assert hashlib.sha256(body).hexdigest() == oid
                    hub.large[oid] = body
                    self.answer(200)
                case ["POST", *_, "info", "lfs", "objects", "batch"]:
                    self.batch(json.loads(body))
                case [_, "api", kinds, owner, name, *rest]:
                    self.repository(f"{kinds[:-1]}/{owner}/{name}", rest, body)
                case ["GET" | "HEAD", *start, owner, name, "resolve", commit, file]:
                    found = hub.repositories[f"{'dataset' if start else 'model'}/{owner}/{name}"].files[file]
                    self.answer(200, found, x_repo_commit=commit, etag=f'"{hashlib.sha256(found).hexdigest()}"')
                case _:
                    self.refuse(404, f"No such path: {path}")

        def create(self, asked: dict[str, Any]) -> None:
            name = f"{asked.get('type') or 'model'}/{asked.get('organization') or 'me'}/{asked['name']}"
            if name in hub.repositories:
                self.refuse(409, "You already created this repo")
                return
            hub.repositories[name] = Repository(asked.get("visibility") == "private" or bool(asked.get("private")))
            self.answer(200, {"url": page(name), "name": name.partition("/")[2]})

        def batch(self, asked: dict[str, Any]) -> None:
            objects = [
                {**item, "actions": {"upload": {"href": f"{hub.url}/large/{item['oid']}"}}} for item in asked["objects"]
            ]
            self.answer(200, {"transfer": "basic", "objects": objects})

        def repository(self, name: str, rest: list[str], body: bytes) -> None:
            if (found := hub.repositories.get(name)) is None:
                self.refuse(404, "Repository not found", "RepoNotFound")
                return
            match rest:
                case [] | ["revision", _]:
                    files = [{"rfilename": file} for file in found.files]
                    about = {"id": name.partition("/")[2], "sha": found.commits[-1], "private": found.private}
                    self.answer(200, {**about, "siblings": files, "tags": [], "downloads": 0, "likes": 0})
                case ["preupload", _]:
                    files = json.loads(body)["files"]
                    modes = {file["path"]: "lfs" if file["path"].endswith(LARGE) else "regular" for file in files}
                    told = [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]
                    self.answer(200, {"files": told})
                case ["commit", _]:
                    self.commit(name, found, [json.loads(line) for line in body.splitlines()])
                case _:
                    self.refuse(404, f"No such path of a repository: {rest}")

        def commit(self, name: str, found: Repository, lines: list[dict[str, Any]]) -> None:
            files = dict(found.files)
            for line in lines:
                value = line["value"]
                match line["key"]:
                    case "header" if value.get("parentCommit", found.commits[-1]) != found.commits[-1]:
                        self.refuse(412, "A commit has happened since")
                        return
                    case "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    case "lfsFile":
                        files[value["path"]] = hub.large[value["oid"]]
                        assert len(files[value["path"]]) == value["size"]
                    case "deletedFile":
                        del files[value["path"]]
            found.files = files
            found.commits.append(hashlib.sha1(str(lines).encode()).hexdigest())
            self.answer(200, {"commitUrl": f"{page(name)}/commit/{found.commits[-1]}", "commitOid": found.commits[-1]})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
