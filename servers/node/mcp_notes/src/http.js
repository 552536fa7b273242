/**
 * The notebook on the loopback interface, by one of two transports.
 *
 * Streamable HTTP at /mcp: every request is answered by itself, with JSON, in either era of the protocol. Server-sent
 * events at /sse: a stream for each client, who posts to /messages and reads the answers from the stream. All of them
 * share the one notebook.
 */

import { createServer } from "node:http";
import { createMcpHandler, isLegacyRequest, WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/server";
import { SSEServerTransport } from "@modelcontextprotocol/server-legacy/sse";
import { notesServer } from "./server.js";

const LOOPBACK = ["127.0.0.1", "localhost", "[::1]"];
/** For all of a request to arrive. */
const REQUEST_MS = 5000;
const MAX_BODY = 4 * 1024 * 1024;
/** Longer than clients keep an idle connection, so that none sends a request into one that we are closing. */
const IDLE_MS = 75_000;
const MAX_CONNECTIONS = 512;
/** In bytes: a client that asks on and on without reading what we answer loses its stream. */
const MAX_UNREAD = 8 * 1024 * 1024;

/** @typedef {import("node:http").IncomingMessage} Request */
/** @typedef {import("node:http").ServerResponse} Response */
/** @typedef {(request: Request, response: Response, url: URL) => Promise<void>} Answer */

/**
 * @param {import("./notebook.js").Notebook} notebook
 * @param {{ transport: string, host: string, port: number }} options
 */
export function listen(notebook, { transport, host, port }) {
  const answer = transport === "sse" ? serverSentEvents(notebook) : streamableHttp(notebook);
  const times = { headersTimeout: REQUEST_MS, requestTimeout: REQUEST_MS, connectionsCheckingInterval: 1000 };
  const listener = createServer({ ...times, keepAliveTimeout: IDLE_MS }, (request, response) => {
    checked(answer, request, response).catch((error) => {
      console.error(error);
      refuse(response, 500, "The server failed.");
    });
  });
  listener.maxConnections = MAX_CONNECTIONS;
  return new Promise((resolve, reject) => {
    listener.once("error", reject);
    listener.listen(port, host, () => resolve(listener.address()));
  });
}

/** @param {Answer} answer @param {Request} request @param {Response} response */
async function checked(answer, request, response) {
  if (!isLocal(request)) return refuse(response, 403, "Only this machine may ask: see the headers Host and Origin.");
  const path = request.url ?? "";
  if (!path.startsWith("/") || path.startsWith("//")) return refuse(response, 404, "There is no such address.");
  await answer(request, response, new URL(path, "http://localhost"));
}

/** @param {import("./notebook.js").Notebook} notebook @returns {Answer} */
function streamableHttp(notebook) {
  const newer = createMcpHandler(() => notesServer(notebook), { legacy: "reject" });
  return async (request, response, url) => {
    if (url.pathname !== "/mcp") return refuse(response, 404, "There is only /mcp.");
    if (request.method !== "POST") return refuse(response, 405, "Only POST: there is no session and no stream.", "POST");
    const body = await message(request, response);
    if (body === undefined) return;
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    const asked = new Request(url, { method: "POST", headers: headersOf(request), signal: gone.signal });
    const older = await isLegacyRequest(asked, body);
    await passOn(await (older ? handshakeEra(notebook, asked, body, response) : newer.fetch(asked, { parsedBody: body })), response);
  };
}

/**
 * A request up to revision 2025-11-25, answered by a server of its own.
 * @param {import("./notebook.js").Notebook} notebook
 * @param {globalThis.Request} asked
 * @param {unknown} body
 * @param {Response} response
 */
async function handshakeEra(notebook, asked, body, response) {
  const server = notesServer(notebook);
  const transport = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on("close", () => void server.close());
  await server.connect(transport);
  return transport.handleRequest(asked, { parsedBody: body });
}

/** @param {Request} request */
function headersOf({ headers }) {
  const single = new Headers();
  for (const [name, value] of Object.entries(headers)) if (typeof value === "string") single.set(name, value);
  return single;
}

/** @param {globalThis.Response} answer @param {Response} response */
async function passOn(answer, response) {
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (answer.body) for await (const part of answer.body) response.write(part);
  response.end();
}

/** @param {import("./notebook.js").Notebook} notebook @returns {Answer} */
function serverSentEvents(notebook) {
  /** @type {Map<string, { transport: SSEServerTransport, stream: Response }>} */
  const open = new Map();
  return async (request, response, url) => {
    if (url.pathname === "/sse") {
      if (request.method !== "GET") return refuse(response, 405, "Only GET: it opens a stream.", "GET");
      const transport = new SSEServerTransport("/messages", response);
      open.set(transport.sessionId, { transport, stream: response });
      response.on("close", () => open.delete(transport.sessionId));
      return notesServer(notebook).connect(transport);
    }
    if (url.pathname !== "/messages") return refuse(response, 404, "There is only /sse, and /messages for its clients.");
    if (request.method !== "POST") return refuse(response, 405, "Only POST: the answer comes on the stream.", "POST");
    const client = open.get(url.searchParams.get("sessionId") ?? "");
    if (!client) return refuse(response, 404, "There is no such session: its stream is not open.");
    if (client.stream.writableLength > MAX_UNREAD) {
      client.stream.destroy();
      return refuse(response, 429, "The stream was closed: its answers were not read.");
    }
    const body = await message(request, response);
    if (body !== undefined) await client.transport.handlePostMessage(request, response, body);
  };
}

/** The message that is posted; where it is none that has been said, and nothing is given. @param {Request} request @param {Response} response */
async function message(request, response) {
  /** @type {Buffer[]} */
  const parts = [];
  let bytes = 0;
  for await (const part of request) {
    bytes += part.length;
    if (bytes <= MAX_BODY) parts.push(part);
    else if (!response.headersSent) refuse(response, 413, `The request is too large: at most ${MAX_BODY} bytes.`);
  }
  if (bytes > MAX_BODY) return undefined;
  try {
    return JSON.parse(Buffer.concat(parts).toString("utf8"));
  } catch {
    return void refuse(response, 400, "The request is no JSON.");
  }
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

/** @param {Response} response @param {number} status @param {string} message @param {string} [allow] the method */
function refuse(response, status, message, allow) {
  if (response.headersSent) return void response.end();
  response.writeHead(status, { "content-type": "application/json", ...(allow && { allow }) });
  response.end(JSON.stringify({ jsonrpc: "2.0", error: { code: -32000, message }, id: null }));
}
