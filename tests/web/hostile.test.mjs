// SPDX-License-Identifier: Apache-2.0
// Names of tenants, processes, publications and nodes that try to become markup stay text.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { closeBrowser, complaints, openPage, waitForView } from "./browser.mjs";
import { FakeServer, PEERS } from "./fake_server.mjs";
import { GPU, HOSTILE, hostile } from "./scenarios.mjs";

let server;
before(async () => {
  server = await new FakeServer(hostile(), {
    peers: [...PEERS, ...HOSTILE.map((name) => ({ url: name, state: "failed", error: name, overview: null })),
            { url: "http://x/", state: "ok", overview: { node: HOSTILE[1], daemon: "ok", devices: [{ uuid: "u", name: HOSTILE[0] }] } }],
  }).start();
  for (const name of HOSTILE) {
    server.events.push({ number: server.events.length + 1, time_ms: Date.now(), event: name, tenant: name, text: name,
                         fields: { tenant: name, __proto__: name, session: [name] } });
  }
});
after(async () => {
  await closeBrowser();
  await server?.stop();
});

// Elements that the page itself never makes.
const FOREIGN = "main img, main script, main iframe, main object, main embed, main form, main textarea, main link, main style, main svg, [onerror], [onload], [onmouseover], [style*='expression']";

const hrefs = () => [...document.querySelectorAll("a[href]")].map((each) => each.href);

test("no name becomes markup, in any view", async (t) => {
  const opened = await openPage(server.url);
  const { page } = opened;
  await waitForView(page);
  const part = (name) => encodeURIComponent(name.replace(/\p{Surrogate}/gu, "\ufffd"));
  const views = ["#/", `#/gpu/${GPU}`, "#/tenants", "#/publications", "#/waiting", "#/events", "#/nodes",
                 ...HOSTILE.flatMap((name, i) => [`#/tenant/${part(name)}`, `#/session/${i + 1}`,
                                                  `#/segment/${100 + 2 * i}`, `#/publication/${part(name)}/${part(name)}`])];
  for (const view of views) {
    await t.test(view.slice(0, 60), async () => {
      await page.evaluate((to) => { location.hash = to; }, view);
      await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
      await waitForView(page);
      assert.equal(await page.locator(FOREIGN).count(), 0);
      assert.equal(await page.evaluate(() => window.pwned), undefined);
      assert.deepEqual((await page.evaluate(hrefs)).filter((each) => !/^https?:/.test(each)), []);
      assert.ok(!/This view failed/.test(await page.locator("main").textContent()));
    });
  }
  for (const view of ["#/", "#/events", "#/waiting", "#/nodes"]) {
    await page.evaluate((to) => { location.hash = to; }, view);
    await waitForView(page);
    assert.deepEqual(await complaints(page), []);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${view} is ${wide} pixels too wide`);
  }
  // Invisible characters, and those that turn the text around, show as what they are.
  await page.evaluate(() => { location.hash = "#/tenants"; });
  await page.waitForFunction(() => document.querySelector("main").textContent.includes("\\u202egnp.exe\\x07\\x1b[31m"));

  // The search finds them, and they are text there, too.
  for (const typed of ["<img", "script", "__proto__", "javascript:"]) {
    await page.keyboard.press("/");
    await page.keyboard.type(typed);
    await page.waitForSelector("#found li");
    assert.equal(await page.locator("#found img, #found script").count(), 0);
    await page.keyboard.press("Escape");
    await page.locator("header input").fill("");
    await page.evaluate(() => document.activeElement.blur());
  }
  assert.deepEqual(await opened.close(), []);
});

test("addresses with strange fragments show a view", async () => {
  for (const hash of ["#/gpu/%E0%A4%A", "#/tenant/__proto__", "#/session/NaN", "#/session/-1", "#/segment/1e99", "#//////",
                      "#/publication", "#<img src=x onerror=alert(1)>", "#login=<script>", "#/constructor/toString"]) {
    const opened = await openPage(server.url, { hash });
    await waitForView(opened.page);
    assert.deepEqual(await opened.close(), [], hash);
  }
});
