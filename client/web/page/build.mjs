// SPDX-License-Identifier: Apache-2.0
// Builds the page: build.mjs [FOLDER], by default bundle/. The same sources and packages give the
// same bytes.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "bundle");
const MOST = 100 * 1024; // bytes, compressed

mkdirSync(out, { recursive: true });
const common = { bundle: true, minify: true, charset: "utf8", legalComments: "none", logLevel: "warning",
                 absWorkingDir: here, target: ["es2022", "chrome100", "firefox102", "safari15.4"] };
await build({
  ...common, entryPoints: ["src/main.tsx"], outfile: join(out, "app.js"), format: "iife",
  jsx: "automatic", jsxImportSource: "preact",
  banner: { js: "/* SPDX-License-Identifier: Apache-2.0; contains Preact and uPlot (MIT) */" },
});
await build({
  ...common, outfile: join(out, "app.css"),
  stdin: { contents: '@import "uplot/dist/uPlot.min.css"; @import "./src/app.css";', loader: "css",
           resolveDir: here },
});
copyFileSync(join(here, "src/index.html"), join(out, "index.html"));
copyFileSync(join(here, "src/icon.svg"), join(out, "icon.svg"));

let all = 0;
for (const name of ["index.html", "app.js", "app.css", "icon.svg"]) {
  const size = gzipSync(readFileSync(join(out, name)), { level: 9 }).length;
  console.log(`${name}: ${size} bytes compressed`);
  all += size;
}
console.log(`in all ${all} of at most ${MOST} bytes`);
if (all > MOST) process.exit(1);
