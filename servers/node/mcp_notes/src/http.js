/** Streamable HTTP on the loopback interface: every request is answered by itself, with JSON, from one notebook. */

import { createServer } from "node:http";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { notesServer } from "./server.js";

const LOOPBACK = ["127.0.0.1", "localhost", "[::1]"];

/** @typedef {import("node:http").IncomingMessage} Request */
/** @typedef {import("node:http").ServerResponse} Response */

/**
 * @param {import("./notebook.js").Notebook} notebook
 * @param {{ host: string, port: number }} address
 */
export function listen(notebook, { host, port }) {
  const listener = createServer((request, response) => {
    answer(notebook, request, response).catch((error) => {
      console.error(error);
      refuse(response, 500, "The server failed.");
    });
  });
  return new Promise((resolve, reject) => {
    listener.once("error", reject);
    listener.listen(port, host, () => resolve(listener.address()));
  });
}

/** @param {import("./notebook.js").Notebook} notebook @param {Request} request @param {Response} response */
async function answer(notebook, request, response) {
  if (request.url?.split("?")[0] !== "/mcp") return refuse(response, 404, "There is only /mcp.");
  if (!isLocal(request)) return refuse(response, 403, "Only this machine may ask: see the headers Host and Origin.");
  if (request.method !== "POST") return refuse(response, 405, "Only POST: there is no session and no stream.");
  const server = notesServer(notebook);
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on("close", () => void server.close());
  await server.connect(transport);
  await transport.handleRequest(request, response);
}

/** A page elsewhere that has its name point at us sends its own Host and Origin. @param {Request} request */
function isLocal({ headers }) {
  const origin = headers.origin?.replace(/^https?:\/\//, "");
  return isLoopback(headers.host ?? "") && (origin === undefined || isLoopback(origin));
}

/** @param {string} host with a port or without */
function isLoopback(host) {
  return LOOPBACK.includes(host.replace(/:\d+$/, ""));
}

/** @param {Response} response @param {number} status @param {string} message */
function refuse(response, status, message) {
  if (response.headersSent) return void response.end();
  response.writeHead(status, { "content-type": "application/json", ...(status === 405 && { allow: "POST" }) });
  response.end(JSON.stringify({ jsonrpc: "2.0", error: { code: -32000, message }, id: null }));
}
