/** `node mcp_notes.mjs --transport stdio|sse|streamable-http --host HOST --port PORT`: one notebook for each process. */

import { parseArgs } from "node:util";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { Notebook } from "./notebook.js";
import { SEED } from "./seed.js";
import { notesServer } from "./server.js";

const HOSTS = ["127.0.0.1", "localhost", "::1"];

function options() {
  const { values } = parseArgs({
    options: {
      transport: { type: "string", default: "stdio" },
      host: { type: "string", default: "127.0.0.1" },
      port: { type: "string", default: "8002" },
    },
  });
  const port = Number(values.port);
  if (!["stdio", "sse", "streamable-http"].includes(values.transport))
    throw new TypeError(`--transport is stdio, sse or streamable-http, not ${values.transport}.`);
  if (!HOSTS.includes(values.host)) throw new TypeError(`--host is one of ${HOSTS.join(", ")}, not ${values.host}.`);
  if (!Number.isInteger(port) || port < 0 || port > 65535)
    throw new TypeError(`--port is a number from 0 to 65535, not ${values.port}.`);
  return { transport: values.transport, host: values.host, port };
}

async function main() {
  const address = options();
  const notebook = new Notebook(SEED);
  if (address.transport !== "stdio") {
    const { listen } = await import("./http.js"); // half of the code, which stdio does not need
    return void (await listen(notebook, address));
  }
  serveStdio(() => notesServer(notebook));
}

main().catch((error) => {
  console.error(error instanceof TypeError ? error.message : error);
  process.exitCode = error instanceof TypeError ? 2 : 1;
});
