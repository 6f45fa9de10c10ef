// SPDX-License-Identifier: Apache-2.0
// The same page from a real gpumem-web with a real gpumemd:
//
//   GPUMEM_WEB_SOCKET=PATH     its unix socket; or
//   GPUMEM_WEB_URL=URL         its address, with "#login=TOKEN" where it needs a login
//   GPUMEM_WEB_KILL=COMMAND    ends the daemon, and
//   GPUMEM_WEB_START=COMMAND   starts it again, until it answers (both, or neither)
//
// Skipped without one of the first two. Compares what the page shows with the state that gpumem-web
// tells, and visits an object of each kind.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { closeBrowser, complaints, openPage, relay, waitForView } from "./browser.mjs";

const { GPUMEM_WEB_SOCKET: socket, GPUMEM_WEB_URL: address, GPUMEM_WEB_KILL: kill, GPUMEM_WEB_START: start } = process.env;
const skip = socket || address ? false : "neither GPUMEM_WEB_SOCKET nor GPUMEM_WEB_URL is set";
let url;
let key;
let relayed;

before(async () => {
  if (skip) return;
  if (socket) {
    relayed = await relay(socket);
    url = relayed.url;
    return;
  }
  const parsed = new URL(address);
  const token = /^#login=(.+)$/.exec(parsed.hash)?.[1];
  parsed.hash = "";
  url = parsed.href;
  if (!token) return;
  const answer = await fetch(`${url}api/v1/login`, { method: "POST", body: JSON.stringify({ token }), headers: { "Content-Type": "application/json" } });
  assert.equal(answer.status, 200, "the login link");
  key = (await answer.json()).key;
});
after(async () => {
  await closeBrowser();
  relayed?.stop();
});

async function snapshot() {
  const answer = await fetch(`${url}api/v1/snapshot`, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  assert.equal(answer.status, 200);
  return answer.json();
}

const open = (options) => openPage(url, { key, ...options });
const part = encodeURIComponent;

function viewsOf(state) {
  const first = (list) => state[list]?.[0];
  const views = ["#/", "#/tenants", "#/publications", "#/waiting", "#/events", "#/nodes",
                 ...(state.devices ?? []).map((each) => `#/gpu/${part(each.device_uuid)}`)];
  if (first("tenants")) views.push(`#/tenant/${part(first("tenants").usage.tenant)}`);
  if (first("sessions")) views.push(`#/session/${first("sessions").session_id}`);
  if (first("segments")) views.push(`#/segment/${first("segments").segment_id}`);
  if (first("publications")) views.push(`#/publication/${part(first("publications").tenant)}/${part(first("publications").name)}`);
  return views;
}

for (const theme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`views, ${theme}, ${width} pixels`, { skip }, async (t) => {
      const state = await snapshot();
      const opened = await open({ theme, width });
      const { page } = opened;
      await waitForView(page);
      for (const view of viewsOf(state)) {
        await t.test(view, async () => {
          await page.evaluate((to) => { location.hash = to; }, view);
          await waitForView(page);
          if (await page.locator(".timeline").count()) await page.waitForSelector(".u-legend");
          await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
          assert.doesNotMatch(await page.locator("main").textContent(), /It is not there now|This view failed|cannot be shown/);
          assert.deepEqual(await complaints(page), []);
        });
      }
      assert.deepEqual(await opened.close(), []);
    });
  }
}

test("the page has the figures of the state", { skip }, async () => {
  const opened = await open({ hash: "#/tenants" });
  const { page } = opened;
  await waitForView(page);
  // Tells them again if the state changed meanwhile.
  for (let attempt = 0; ; ++attempt) {
    const state = await snapshot();
    const told = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("tbody tr")].map((row) => [
      row.querySelector("td").textContent, Number(row.querySelector(".number").title.split(" ")[0])])));
    const expected = Object.fromEntries((state.tenants ?? []).slice(0, 100).map((each) => [each.usage.tenant, each.usage.charged_bytes ?? 0]));
    try {
      assert.deepEqual(told, expected);
      break;
    } catch (error) {
      if (attempt > 40) throw error;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  }
  assert.deepEqual(await opened.close(), []);
});

const run = (command) => new Promise((resolve) => spawn("sh", ["-c", command], { stdio: "inherit" }).on("close", resolve));

test("a restart of the daemon shows, and the page comes back", { skip: skip || (kill && start ? false : "GPUMEM_WEB_KILL or GPUMEM_WEB_START is not set") }, async () => {
  const opened = await open({ hash: "#/tenants" });
  const { page } = opened;
  await waitForView(page);
  assert.equal(await run(kill), 0);
  // The daemon starts after the page has shown that it is gone: a quick restart shows for too short.
  await page.waitForSelector(".banner");
  assert.match(await page.locator(".banner").textContent(), /No figures from gpumemd since/);
  assert.equal(await run(start), 0);
  await page.waitForFunction(() => !document.querySelector(".banner") && !document.querySelector("main.stale"));
  assert.deepEqual(await opened.close(), []);
});
