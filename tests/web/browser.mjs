// SPDX-License-Identifier: Apache-2.0
// The browser of these tests, and what each test watches: messages of errors, requests to other
// hosts, breaches of the content policy, dialogs.
import { createRequire } from "node:module";
import { createServer, request as httpRequest } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// Packages are beside the tests, or in the folder that the test's wrapper names.
const require = createRequire(join(process.env.GPUMEM_WEB_PACKAGES ?? dirname(fileURLToPath(import.meta.url)), "x.js"));
const { chromium } = require("playwright-core");
const AXE = require.resolve("axe-core/axe.min.js");

export const CHROMIUM = process.env.GPUMEM_CHROMIUM ?? "/usr/bin/chromium";

let browser;
export async function theBrowser() {
  browser ??= await chromium.launch({
    executablePath: CHROMIUM,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--enable-precise-memory-info", "--js-flags=--expose-gc"],
  });
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
  browser = undefined;
}

/** A page that remembers all that must not happen. */
export async function openPage(url, { width = 1280, height = 900, theme = "light", hash = "", key = process.env.GPUMEM_WEB_KEY } = {}) {
  const context = await (await theBrowser()).newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce" });
  const page = await context.newPage();
  const wrong = [];
  const origin = new URL(url).origin;
  page.on("console", (message) => {
    if (message.type() !== "error" && message.type() !== "warning") return;
    if (/Failed to load resource|ERR_CONNECTION|ERR_INCOMPLETE/.test(message.text())) return; // a server that a test has ended
    wrong.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) wrong.push(`request to ${request.url()}`);
  });
  await page.addInitScript(() => {
    window.breaches = [];
    document.addEventListener("securitypolicyviolation", (event) =>
      window.breaches.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
  });
  if (key) await page.addInitScript((value) => sessionStorage.setItem("gpumem-web-key", value), key);
  await page.goto(url + hash);
  return {
    page, wrong,
    async close() {
      const breaches = await page.evaluate(() => window.breaches ?? []).catch(() => []);
      await context.close();
      return [...wrong, ...breaches.map((each) => `policy: ${each}`)];
    },
  };
}

export async function waitForView(page) {
  await page.waitForSelector("main h1");
}

/** Returns axe's complaints, a line each. */
export async function complaints(page) {
  const { readFileSync } = await import("node:fs");
  // Not as a script of the page: the page's policy forbids those.
  await page.evaluate(`(() => { const module = undefined; ${readFileSync(AXE, "utf8")}\n })()`);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return result.violations.flatMap((each) =>
    each.nodes.slice(0, 3).map((node) => `${each.id}: ${node.target.join(" ")}: ${node.failureSummary?.split("\n")[1] ?? each.help}`));
}

/** Serves a unix socket of gpumem-web on loopback, for a browser. */
export async function relay(socketPath) {
  const server = createServer((request, response) => {
    const onward = httpRequest({ socketPath, path: request.url, method: request.method, headers: request.headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, stop: () => { server.closeAllConnections(); server.close(); } };
}
