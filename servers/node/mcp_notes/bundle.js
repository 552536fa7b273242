/**
 * `npm run bundle`: the server and what it needs in one file, mcp_notes.mjs, that runs without an installation.
 *
 * The same sources give the same bytes. The first line names the digest of the sources that it was made from; the
 * licences of what is inside go to THIRD_PARTY_LICENSES.txt.
 */

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
process.chdir(here);

function digest() {
  const sources = [...readdirSync("src").sort().map((name) => `src/${name}`), "bundle.js", "package-lock.json"];
  const hash = createHash("sha256");
  for (const path of sources) hash.update(readFileSync(path));
  return hash.digest("hex");
}

/** The packages that the bundle holds code of. @param {string[]} inputs */
function packages(inputs) {
  const folders = inputs.map((path) => /^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0]);
  return [...new Set(folders.filter((folder) => folder !== undefined))].sort();
}

/** @param {string} folder */
function licence(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
  return `${name} ${version} (${license})\n\n${text}\n`;
}

const { metafile } = await build({
  entryPoints: ["src/main.js"],
  outfile: "mcp_notes.mjs",
  bundle: true,
  minifySyntax: true,
  minifyWhitespace: true,
  platform: "node",
  format: "esm",
  target: "node20",
  charset: "utf8",
  legalComments: "none",
  metafile: true,
  banner: {
    js: [
      `// Made by "npm run bundle" from sources with sha256 ${digest()}.`,
      "// Contains other people's packages; their licences are in THIRD_PARTY_LICENSES.txt.",
      'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);',
    ].join("\n"),
  },
});
const inside = packages(Object.keys(metafile.inputs));
writeFileSync("THIRD_PARTY_LICENSES.txt", inside.map(licence).join(`\n${"-".repeat(80)}\n\n`));
console.log(`mcp_notes.mjs: ${metafile.outputs["mcp_notes.mjs"]?.bytes} bytes, ${inside.length} packages inside.`);
