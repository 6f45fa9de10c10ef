// SPDX-License-Identifier: Apache-2.0
// Use of the page: by keys alone, search, live changes, login, lost connections.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { closeBrowser, complaints, openPage, waitForView } from "./browser.mjs";
import { FakeServer } from "./fake_server.mjs";
import { demo, GIB, GPU, MIB } from "./scenarios.mjs";

after(closeBrowser);

async function withServer(options, run, state = demo()) {
  const server = await new FakeServer(state, options).start();
  try {
    await run(server);
  } finally {
    await server.stop();
  }
}

const says = (page, selector, pattern) =>
  page.waitForFunction(([where, text]) => new RegExp(text).test(document.querySelector(where)?.textContent ?? ""),
                       [selector, pattern.source]).catch(() => assert.fail(`${selector} never says ${pattern}`));

test("by keys alone", () => withServer({}, async (server) => {
  const opened = await openPage(server.url);
  const { page } = opened;
  await waitForView(page);
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute("aria-label"));

  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Go to the figures");
  assert.ok(await page.evaluate(() => document.activeElement.getBoundingClientRect().left >= 0), "the skip link shows when focused");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.keyboard.press("Tab");
  assert.match(await focused(), /GPU 0/);
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.notEqual(outline, "none", "focus is visible");
  await page.keyboard.press("Enter");
  await says(page, "h1", /GPU 0/);

  // The map: into the largest tenant, its largest holder, a segment, and to that segment's page.
  while (!/Map of/.test((await focused()) ?? "")) await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowRight");
  await says(page, ".details h2", /serving/);
  await page.keyboard.press("ArrowRight");
  await says(page, ".details h2", /research/);
  await page.keyboard.press("ArrowDown");
  await says(page, ".details h2", /alice/);
  await page.keyboard.press("ArrowDown");
  await says(page, ".details h2", /train\.py/);
  await page.keyboard.press("ArrowDown");
  await says(page, ".details h2", /segment/);
  const spoken = await page.locator("p.unseen[role=status]").textContent();
  assert.match(spoken, /^segment \d+, 8\.00 GiB, train\.py · pid 5120, alice, research$/);
  await page.keyboard.press("ArrowUp");
  await says(page, ".details h2", /train\.py/);
  await page.keyboard.press("Enter");
  await says(page, "h1", /train\.py/);
  await page.waitForFunction(() => document.activeElement.id === "main"); // focus goes to the new view

  // A table is sorted by its head.
  await page.evaluate(() => { location.hash = "#/tenants"; });
  await says(page, "h1", /Tenants/);
  while ((await focused()) !== "Tenant") await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  await page.waitForSelector("th[aria-sort=ascending]");
  await says(page, "tbody td", /alice/);
  assert.deepEqual(await opened.close(), []);
}));

test("search", () => withServer({}, async (server) => {
  const opened = await openPage(server.url);
  const { page } = opened;
  await waitForView(page);
  const expected = {
    "5344": [/rollout\.py · pid 5344/, "#/session/22"],
    "train": [/train\.py/, "#/session/21"],
    "llama": [/serving\/llama-weights/, "#/publication/serving/llama-weights"],
    "segment 100": [/segment 100/, "#/segment/100"],
    "batch": [/batch-7731/, "#/tenant/batch-7731"],
    "8f2b1a30": [/GPU 0/, `#/gpu/${GPU}`],
  };
  for (const [typed, [title, hash]] of Object.entries(expected)) {
    await page.keyboard.press("/");
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("role")), "combobox");
    await page.keyboard.type(typed);
    await says(page, "#found", title);
    assert.deepEqual(await complaints(page), []);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await page.waitForFunction((to) => location.hash === to, hash);
  }
  await page.keyboard.press("/");
  await page.keyboard.type("nothing of that name");
  await says(page, ".found.nothing", /Nothing has that name/);
  await page.keyboard.press("Escape");
  assert.deepEqual(await opened.close(), []);
}));

test("changes come live", () => withServer({}, async (server) => {
  const opened = await openPage(server.url, { hash: "#/waiting" });
  const { page } = opened;
  await says(page, "tbody", /rollout\.py/);
  const waits = () => page.evaluate(() => document.querySelector("tbody time").textContent);
  const first = await waits();
  await page.waitForFunction((before) => document.querySelector("tbody time").textContent !== before, first);

  server.change({ waiting: [] });
  await says(page, "main", /No request waits/);
  await page.evaluate(() => { location.hash = "#/session/41"; });
  await says(page, "h1", /jupyter-lab/);
  const session = server.state.sessions.find((each) => each.session_id === 41);
  server.change({ sessions: { set: [{ ...session, leased_bytes: 6 * GIB, leases: 2 }] } });
  await says(page, "main", /6\.00 GiB in 2 leases/);
  server.change({ sessions: { gone: [41] } });
  await says(page, "main", /It is not there now/);
  await page.evaluate(() => { location.hash = "#/events"; });
  await says(page, "h1", /Events/);
  server.addEvent({ event: "lost", tenant: "alice", text: "something odd has happened", fields: {} });
  await says(page, "tbody", /something odd has happened/);

  // The chart of the last hour goes on from the changes.
  await page.evaluate(() => { location.hash = "#/tenant/user-1007"; });
  await says(page, ".u-legend", /charged:?\s*1\.00 GiB/);
  const tenant = server.state.tenants.find((each) => each.usage.tenant === "user-1007");
  const usage = { ...tenant.usage, charged_bytes: 3 * GIB, devices: tenant.usage.devices.map((each) => ({ ...each, charged_bytes: 3 * GIB, leased_bytes: 3 * GIB })) };
  server.change({ tenants: { set: [{ ...tenant, usage }] } });
  await says(page, ".u-legend", /charged:?\s*3\.00 GiB/);
  assert.deepEqual(await opened.close(), []);
}));

test("a lost daemon, and a lost gpumem-web, come back", () => withServer({}, async (server) => {
  const opened = await openPage(server.url, { hash: "#/tenant/serving" });
  const { page } = opened;
  await says(page, "main", /54\.00 GiB/);
  server.loseDaemon();
  await says(page, ".banner", /No figures from gpumemd since \d\d:\d\d:\d\d .*The figures are those of/);
  await page.waitForSelector("main.stale");
  assert.deepEqual(await complaints(page), []);
  const state = server.state;
  const serving = state.tenants.find((each) => each.usage.tenant === "serving");
  serving.usage.charged_bytes = 55 * GIB;
  server.daemonBack(state);
  await says(page, "main", /55\.00 GiB/);
  await page.waitForFunction(() => !document.querySelector(".banner") && !document.querySelector("main.stale"));

  await server.stop();
  await says(page, ".banner", /gpumem-web does not answer since/);
  await page.waitForSelector("main.stale");
  serving.usage.charged_bytes = 56 * GIB + 512 * MIB;
  server.state = { ...server.state, number: 1 };
  await server.start();
  await says(page, "main", /56\.50 GiB/);
  await page.waitForFunction(() => !document.querySelector(".banner") && !document.querySelector("main.stale"));
  assert.deepEqual(await opened.close(), []);
}));

test("a page that starts without the daemon", () => withServer({}, async (server) => {
  server.loseDaemon("cannot connect to /run/gpumem/view.sock: Permission denied");
  const opened = await openPage(server.url);
  const { page } = opened;
  await says(page, ".banner", /No figures from gpumemd since .*Reason: cannot connect to \/run\/gpumem\/view\.sock: Permission denied/);
  assert.doesNotMatch(await page.locator("body").textContent(), /Waiting for|does not answer/);
  assert.deepEqual(await complaints(page), []);
  server.daemonBack();
  await says(page, "main", /63\.25 GiB/);
  assert.deepEqual(await opened.close(), []);
}));

// Requests to addresses with a user and a password are refused by fetch().
test("an address with a user and a password", () => withServer({}, async (server) => {
  const opened = await openPage(server.url.replace("http://", "http://user:password@"), { hash: "#/tenant/serving" });
  const { page } = opened;
  await says(page, "main", /54\.00 GiB/);
  await page.waitForSelector(".u-legend"); // the history, too
  assert.deepEqual(await opened.close(), []);
}));

test("a login link", () => withServer({ login: true }, async (server) => {
  const opened = await openPage(server.url, { key: undefined });
  const { page } = opened;
  await says(page, "main", /gpumemctl web/);
  assert.deepEqual(await complaints(page), []);
  await page.goto(`${server.url}#login=once`); // the fragment alone changes
  await says(page, "main", /63\.25 GiB/);
  assert.ok(!page.url().includes("login"), "the token leaves the address");
  await page.reload();
  await says(page, "main", /63\.25 GiB/);
  server.keys.clear();
  await page.reload();
  await says(page, "main", /gpumemctl web/);
  await opened.close();
}));
