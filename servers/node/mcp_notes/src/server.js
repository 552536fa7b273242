/** The notebook's tools and resources on one MCP connection, in either era of the protocol. */

import { ProtocolError, ProtocolErrorCode, Server } from "@modelcontextprotocol/server";
import { refuseWrongTypes } from "./arguments.js";
import { NotebookError, quoted } from "./notebook.js";
import { TOOLS } from "./tools.js";

const SCHEME = "note://";

/** @param {import("./notebook.js").Notebook} notebook shared by all connections of this process */
export function notesServer(notebook) {
  const server = new Server(
    { name: "mcp_notes", title: "Notebook", version: "1.0.0" },
    {
      capabilities: { tools: {}, resources: {} },
      instructions: "A notebook in memory. A note is named by its id (n1, n2, …) or by its exact title.",
    },
  );
  server.setRequestHandler("tools/list", () => ({
    tools: Object.entries(TOOLS).map(([name, tool]) => ({
      name,
      title: tool.title,
      description: tool.description,
      inputSchema: /** @type {{ type: "object" }} */ (tool.input),
      outputSchema: /** @type {{ type: "object" }} */ (tool.output),
      annotations: { ...tool.annotations, openWorldHint: false },
    })),
  }));
  server.setRequestHandler("tools/call", ({ params }) => call(notebook, params.name, params.arguments ?? {}));
  server.setRequestHandler("resources/list", () => ({
    resources: notebook.list().map(({ id, title }) => ({ uri: SCHEME + id, name: id, title, mimeType: "text/plain" })),
  }));
  server.setRequestHandler("resources/templates/list", () => ({
    resourceTemplates: [{ uriTemplate: `${SCHEME}{id}`, name: "note", description: "The text of a note", mimeType: "text/plain" }],
  }));
  server.setRequestHandler("resources/read", ({ params }) => resource(notebook, params.uri));
  return server;
}

/**
 * @param {import("./notebook.js").Notebook} notebook
 * @param {string} name
 * @param {Record<string, unknown>} args
 * @returns {import("@modelcontextprotocol/server").CallToolResult}
 */
function call(notebook, name, args) {
  try {
    if (!Object.hasOwn(TOOLS, name))
      throw new NotebookError(`There is no tool ${quoted(name)}; there is ${Object.keys(TOOLS).join(", ")}.`);
    const tool = /** @type {import("./tools.js").Tool} */ (TOOLS[name]);
    refuseWrongTypes(tool.input, args, name);
    const result = tool.run(notebook, args);
    return { content: [{ type: "text", text: JSON.stringify(result) }], structuredContent: result };
  } catch (error) {
    if (!(error instanceof NotebookError)) throw error;
    return { content: [{ type: "text", text: error.message }], isError: true };
  }
}

/** @param {import("./notebook.js").Notebook} notebook @param {string} uri */
function resource(notebook, uri) {
  try {
    if (!uri.startsWith(SCHEME)) throw new NotebookError(`A note's address is ${SCHEME}n1, not ${quoted(uri)}.`);
    return { contents: [{ uri, mimeType: "text/plain", text: notebook.read(uri.slice(SCHEME.length)).text }] };
  } catch (error) {
    if (!(error instanceof NotebookError)) throw error;
    throw new ProtocolError(ProtocolErrorCode.InvalidParams, error.message, { uri });
  }
}
