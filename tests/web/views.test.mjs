// SPDX-License-Identifier: Apache-2.0
// Every view, in both themes and two widths: it is there, axe finds no fault, nothing is wrong.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { closeBrowser, complaints, openPage, waitForView } from "./browser.mjs";
import { FakeServer, PEERS } from "./fake_server.mjs";
import { demo, GPU, GPU1, own, TIER } from "./scenarios.mjs";

let server;
before(async () => {
  server = await new FakeServer(demo(), { peers: PEERS }).start();
});
after(async () => {
  await closeBrowser();
  await server?.stop();
});

const VIEWS = {
  memory: ["#/", /63\.25 GiB of 79\.63 GiB held/],
  gpu: [`#/gpu/${GPU}`, /Not from gpumem\s*3\.21 GiB · 4%/],
  "host tier": [`#/gpu/${TIER}`, /Contents of suspended GPU memory/],
  tenants: ["#/tenants", /batch-7731/],
  tenant: ["#/tenant/serving", /Guarantee a device\s*32\.00 GiB/],
  parent: ["#/tenant/research", /Tenants under it/],
  session: ["#/session/21", /yes, also when others need its memory/],
  "lingering session": ["#/session/32", /its socket is closed/],
  segment: ["#/segment/100", /charged once, to its tenant/],
  publications: ["#/publications", /until it is unpublished/],
  publication: ["#/publication/serving/llama-weights", /Attached sessions/],
  waiting: ["#/waiting", /memory of serving \(32\.00 GiB\), alice \(18\.00 GiB\)/],
  events: ["#/events", /What happened/],
  nodes: ["#/nodes", /does not answer/],
  gone: ["#/session/999", /It is not there now/],
};

for (const theme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`views, ${theme}, ${width} pixels`, async (t) => {
      const opened = await openPage(server.url, { theme, width, height: width < 500 ? 740 : 900 });
      const { page } = opened;
      await waitForView(page);
      for (const [name, [hash, text]] of Object.entries(VIEWS)) {
        await t.test(name, async () => {
          await page.evaluate((to) => { location.hash = to; }, hash);
          await page.waitForFunction(([pattern]) => new RegExp(pattern).test(document.querySelector("main")?.textContent ?? ""),
                                     [text.source]).catch(() => assert.fail(`${name} never says ${text}`));
          if (await page.locator(".timeline").count()) await page.waitForSelector(".u-legend");
          await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
          assert.deepEqual(await complaints(page), []);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          assert.ok(wide <= 0, `${wide} pixels too wide`);
          assert.match(await page.title(), /gpumem/);
        });
      }
      assert.deepEqual(await opened.close(), []);
    });
  }
}

test("the theme can be chosen, and stays", async () => {
  const opened = await openPage(server.url, { theme: "light" });
  const { page } = opened;
  await waitForView(page);
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "light");
  await page.getByRole("button", { name: /Theme/ }).click();
  await page.getByRole("button", { name: /Theme/ }).click();
  assert.equal(await theme(), "dark");
  await page.reload();
  await waitForView(page);
  assert.equal(await theme(), "dark");
  await page.emulateMedia({ colorScheme: "light" });
  assert.equal(await theme(), "dark");
  assert.deepEqual(await opened.close(), []);
});

test("a viewer of some tenants is told what is hidden", async () => {
  const some = await new FakeServer(own()).start();
  const opened = await openPage(some.url, { hash: `#/gpu/${GPU}` });
  const { page } = opened;
  await waitForView(page);
  await page.waitForFunction(() => /You see your tenants/.test(document.body.textContent));
  await page.waitForFunction(() => /\(others\)/.test(document.querySelector("main table").textContent));
  assert.deepEqual(await complaints(page), []);
  assert.deepEqual(await opened.close(), []);
  await some.stop();
});

test("permalinks survive a reload, and go back and forth", async () => {
  const opened = await openPage(server.url, { hash: "#/segment/100" });
  const { page } = opened;
  await page.waitForFunction(() => /Segment 100/.test(document.querySelector("h1")?.textContent ?? ""));
  await page.reload();
  await page.waitForFunction(() => /Segment 100/.test(document.querySelector("h1")?.textContent ?? ""));
  await page.getByRole("link", { name: "serving" }).first().click();
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "serving");
  assert.equal(await page.evaluate(() => location.hash), "#/tenant/serving");
  await page.goBack();
  await page.waitForFunction(() => /Segment 100/.test(document.querySelector("h1")?.textContent ?? ""));
  await page.waitForFunction(() => document.title === "Segment 100 · gpumem · node-17");
  assert.deepEqual(await opened.close(), []);
});

test("the map tells of what is pointed at, and opens its page", async () => {
  const opened = await openPage(server.url, { hash: `#/gpu/${GPU1}` });
  const { page } = opened;
  await waitForView(page);
  const map = page.locator(".map").first();
  await map.scrollIntoViewIfNeeded();
  const box = await map.boundingBox();
  await page.mouse.move(box.x + 60, box.y + 120);
  await page.waitForFunction(() => /24\.00 GiB/.test(document.querySelector(".details .figure")?.textContent ?? ""));
  assert.match(await page.locator(".details").textContent(), /Segment.*bob/s);
  assert.deepEqual(await complaints(page), []);
  await page.mouse.dblclick(box.x + 60, box.y + 120);
  await page.waitForFunction(() => /^#\/segment\/\d+$/.test(location.hash));
  assert.deepEqual(await opened.close(), []);
});
