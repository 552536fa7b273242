"""A site on loopback: sixteen linked pages about lighthouses and their keepers, with lists, a table and pairs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIGHTS = [
    ("Skarv Point", "north", 1874, 31, 142, "Ingrid Dahl", "white"),
    ("Old Tern", "north", 1902, 18, 97, "Peter Holm", "red"),
    ("Gannet Rock", "north", 1861, 44, 210, "Ingrid Dahl", "white"),
    ("Curlew Head", "north", 1933, 26, 118, "Marta Lund", "green"),
    ("Heron Spit", "north", 1889, 15, 64, "Peter Holm", "red"),
    ("Puffin Isle", "north", 1847, 39, 187, "Jonas Berg", "white"),
    ("Kelp Bay", "south", 1911, 22, 105, "Marta Lund", "white"),
    ("Amber Cliff", "south", 1858, 35, 163, "Jonas Berg", "red"),
    ("Salt Harbour", "south", 1926, 12, 51, "Peter Holm", "green"),
    ("Drift Bank", "south", 1895, 28, 133, "Ingrid Dahl", "white"),
    ("Marram Dune", "south", 1869, 33, 151, "Marta Lund", "red"),
    ("Cockle Sound", "south", 1940, 20, 88, "Jonas Berg", "white"),
]
KEEPERS = [("Ingrid Dahl", "Strand", 1998, 3), ("Peter Holm", "Vik", 2004, 1), ("Marta Lund", "Sund", 1991, 5),
           ("Jonas Berg", "Strand", 2011, 2)]  # fmt: skip
HOME = '<p><a href="/">Home</a> <a href="https://example.com/elsewhere">Elsewhere</a></p>'


def pages() -> dict[str, str]:
    links = "".join(f'<li><a href="/lights/{address(name)}">{name}</a></li>' for name, *_ in LIGHTS)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in KEEPERS)
    heads = "".join(f"<th>{name}</th>" for name in ("Name", "Town", "Since", "Boats"))
    found = {
        "/": page("Two coasts", '<ul><li><a href="lighthouses.html">All lighthouses</a></li>'
                  '<li><a href="keepers.html">All keepers</a></li></ul>'),
        "/lighthouses.html": page("The lights", f"<h2>Lighthouses</h2><ul>{links}</ul>{HOME}"),
        "/keepers.html": page("Those who keep them", f"<h2>Keepers</h2><table><tr>{heads}</tr>{rows}</table>{HOME}"),
    }  # fmt: skip
    for name, coast, year, height, steps, keeper, colour in LIGHTS:
        pairs = {"Coast": coast, "Built": year, "Height": f"{height} m", "Steps": steps, "Keeper": keeper,
                 "Colour": colour}  # fmt: skip
        facts = "".join(f"<li>{word}: {value}</li>" for word, value in pairs.items())
        found[f"/lights/{address(name)}"] = page(name, f"<p>A lighthouse.</p><ul>{facts}</ul>{HOME}")
    return found


def address(name: str) -> str:
    return f"{name.lower().replace(' ', '-')}.html"


def page(title: str, body: str) -> str:
    return f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1>{body}</body></html>"


@contextmanager
def served(site: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the pages of a site by their paths, or those about lighthouses; yield the address of the first page."""
    texts = pages() if site is None else site

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = texts.get(self.path)
            self.send_response(200 if text else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or "There is no such page.").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with served() as first:
        print(first, flush=True)
        threading.Event().wait()
