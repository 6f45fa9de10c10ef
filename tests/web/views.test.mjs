// SPDX-License-Identifier: Apache-2.0
// Every view, in both themes and two widths: it is there, axe finds no fault, nothing is wrong.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { closeBrowser, complaints, openPage, waitForView } from "./browser.mjs";
import { FakeServer, PEERS } from "./fake_server.mjs";
import { demo, GIB, GPU, GPU1, idle, own, TIER } from "./scenarios.mjs";

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
  nodes: ["#/nodes", /node-17.*cannot be read/],
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
  await page.waitForSelector(".u-legend");
  const chart = page.locator("section:has(> .timeline)");
  assert.match(await chart.textContent(), /Memory of tenants that you may not see is not in this chart\./);
  // Nor does a change bring it in.
  const others = some.state.tenants.find((each) => each.usage.tenant === "(others)");
  const usage = { ...others.usage, devices: [{ device_uuid: GPU, charged_bytes: 3 * GIB, leased_bytes: 3 * GIB }] };
  some.change({ tenants: { set: [{ usage }] } });
  await page.waitForFunction(() => /\(others\)3\.00 GiB/.test(document.querySelector("main table").textContent));
  await page.waitForTimeout(1200); // charts are drawn anew each second
  assert.doesNotMatch(await page.locator(".u-legend").textContent(), /others/);
  assert.deepEqual(await complaints(page), []);
  assert.deepEqual(await opened.close(), []);
  await some.stop();
});

const rowsOf = (page) => page.evaluate(() =>
  [...document.querySelectorAll("main tbody tr")].map((row) => [...row.cells].map((each) => each.textContent.trim())));

test("the sum of hidden tenants has its memory, and says what is hidden", async () => {
  const some = await new FakeServer(own()).start();
  for (const width of [1280, 360]) {
    const opened = await openPage(some.url, { hash: "#/tenants", width });
    const { page } = opened;
    await waitForView(page);
    assert.deepEqual((await rowsOf(page))[0], ["(others)", "hidden", "122.25 GiB", "hidden", "hidden", "hidden", "hidden"]);
    await page.getByRole("link", { name: "(others)" }).click();
    await page.waitForFunction(() => document.querySelector("h1")?.textContent === "(others)");
    const text = await page.locator("main").textContent();
    assert.match(text, /Memory of tenants that you may not see, as one sum\..*122\.25 GiB/);
    assert.doesNotMatch(text, /Limit|Sessions|There are no|The last hour|Events|Peak/);
    assert.deepEqual((await rowsOf(page))[0].slice(0, 3), ["0 GPU-8f2b1a30", "62.25 GiB", "58.75 GiB"]);
    assert.deepEqual(await complaints(page), []);

    await page.evaluate(() => { location.hash = "#/waiting"; });
    await page.waitForFunction(() => document.querySelector("h1")?.textContent === "Queue");
    const hidden = (await rowsOf(page)).filter((row) => row[2] === "(others)");
    assert.equal(hidden.length, 2);
    for (const row of hidden) assert.deepEqual([row[3], row[4], row[5], row[7]], ["hidden", "hidden", "hidden", "hidden"]);
    assert.deepEqual(await complaints(page), []);
    assert.deepEqual(await opened.close(), []);
  }
  some.change({ tenants: { gone: ["(others)"] } });
  const opened = await openPage(some.url, { hash: "#/tenant/(others)" });
  await opened.page.waitForFunction(() => /They hold no memory\./.test(document.querySelector("main")?.textContent));
  assert.deepEqual(await opened.close(), []);
  await some.stop();
});

test("nodes say why they cannot be read, and what would help", async () => {
  const opened = await openPage(server.url, { hash: "#/nodes" });
  const { page } = opened;
  await page.waitForSelector("article:nth-of-type(4)");
  const cards = await page.locator("article").allTextContents();
  assert.match(cards[0], /^node-17\s*This node/);
  assert.match(cards[0], /63\.25 GiB of 79\.63 GiB, 79%.*6 tenants, 8 sessions, 3 waiting/);
  const about = (name) => cards.find((each) => each.includes(name)) ?? "";
  assert.match(about("node-18"), /1 tenant, 9 sessions/);
  assert.match(about("node-19"), /cannot be read\s*no connection \(Connection refused\)$/);
  assert.match(about("node-20"), /cannot be read\s*it refuses \(HTTP 421\): add --host NAME on that node$/);
  assert.match(about("node-21"), /cannot be read\s*it refuses \(HTTP 401\): check --peer-headers$/);
  for (const url of ["https://node-18.example/", "https://node-19.example/", "unix:/run/gpumem-other/web.sock"]) {
    assert.equal(about(url).split(url).length, 2, `${url} is there once`);
  }
  const [bar, line] = await page.evaluate(() => [
    getComputedStyle(document.querySelector("[role=meter] > *")).backgroundColor,
    getComputedStyle(document.querySelector("nav a[aria-current]")).borderBottomColor]);
  assert.equal(bar, line);
  assert.deepEqual(await opened.close(), []);
});

test("a device that is all free has a map, too", async () => {
  const free = await new FakeServer(idle()).start();
  const opened = await openPage(free.url);
  const { page } = opened;
  await waitForView(page);
  assert.equal(await page.locator(".device-card").count(), 2);
  assert.equal(await page.locator(".device-card canvas").count(), 2);
  assert.deepEqual(await complaints(page), []);
  assert.deepEqual(await opened.close(), []);
  await free.stop();
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
