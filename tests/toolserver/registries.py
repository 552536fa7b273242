"""Package registries on loopback, and packages for them whose servers need no other package."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_JAVASCRIPT = """#!/usr/bin/env node
const tools = TOOLS.map(name => ({name, description: name, inputSchema: {type: 'object'}}));
require('readline').createInterface({input: process.stdin}).on('line', line => {
  const {id, method, params} = JSON.parse(line);
  if (id === undefined) return;
  const answers = {
    'initialize': {protocolVersion: params && params.protocolVersion, capabilities: {tools: {}},
      serverInfo: {name: 'tiny', version: 'VERSION'}},
    'tools/list': {tools}, 'ping': {},
    'tools/call': {content: [{type: 'text', text: JSON.stringify(process.argv.slice(2))}]},
  };
  const error = {code: -32601, message: 'no such method'};
  console.log(JSON.stringify({jsonrpc: '2.0', id, ...(answers[method] ? {result: answers[method]} : {error})}));
});
"""
_PYTHON = """
import json, sys

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {
            "initialize": {"protocolVersion": asked.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}}, "serverInfo": {"name": "tiny", "version": "VERSION"}},
            "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]},
            "tools/call": {"content": [{"type": "text", "text": json.dumps(sys.argv[1:])}]},
        }.get(asked["method"])
        if "id" in asked:
            end = {"result": answer} if answer else {"error": {"code": -32601, "message": "no such method"}}
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **end}), flush=True)
"""


class NpmRegistry:
    """Packages by name and version over npm's registry protocol: `with NpmRegistry() as registry`."""

    def __init__(self):
        self.asked = []
        self._packages = {}
        self._files = {}

    def add(self, name, version, *, tools=("show",), programs=("tiny",), needs=None):
        """Publish a server that lists these tools, and make it the latest version."""
        source = _JAVASCRIPT.replace("TOOLS", json.dumps(tools)).replace("VERSION", version)
        about = {"name": name, "version": version, "bin": {one: f"{one}.js" for one in programs}}
        about |= {"dependencies": needs} if needs else {}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file, text in {
                "package.json": json.dumps(about),
                **dict.fromkeys(about["bin"].values(), source),
            }.items():
                entry = tarfile.TarInfo(f"package/{file}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        content, place = packed.getvalue(), f"/{name}/-/{version}.tgz"
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        self._files[place] = content
        versions = self._packages.setdefault(name, {})
        versions[version] = {**about, "dist": {"tarball": self.url + place, "integrity": integrity}}
        return integrity

    def __enter__(self):
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                registry.asked.append(self.path)
                name = self.path.lstrip("/").replace("%2f", "/")
                body = registry._files.get(self.path)
                if body is None and (versions := registry._packages.get(name)):
                    latest = {"dist-tags": {"latest": [*versions][-1]}}
                    body = json.dumps({"name": name, **latest, "versions": versions}).encode()
                self.send_response(200 if body else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body or b"{}")))
                self.end_headers()
                self.wfile.write(body or b"{}")

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self):
        """Make the registry unreachable."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __exit__(self, *_):
        self.stop()


def add_wheel(folder, name, version, *, tools=("show",), requires="", begins=""):
    """Write a wheel with a server that lists these tools; `begins` is run first."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{module}.py": begins + "\n" + _PYTHON.replace("TOOLS", repr(tools)).replace("VERSION", version),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
    }
    rows = [f"{file},sha256={_hash(text)},{len(text)}" for file, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)


def _hash(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
