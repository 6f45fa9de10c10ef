// SPDX-License-Identifier: Apache-2.0
// What the views contain: the map's pixels, the chart's curves, the rows of queue and events.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { closeBrowser, openPage } from "./browser.mjs";
import { FakeServer } from "./fake_server.mjs";
import { demo, GPU, hostile } from "./scenarios.mjs";
let server;
before(async () => { server = await new FakeServer(demo()).start(); });
after(async () => { await closeBrowser(); await server?.stop(); });
const says = (page, selector, pattern) =>
  page.waitForFunction(([where, text]) => new RegExp(text).test(document.querySelector(where)?.textContent ?? ""),
                       [selector, pattern.source], { timeout: 6000 }).catch(() => assert.fail(`${selector} never says ${pattern}`));
const rowsOf = (page) => page.evaluate(() =>
  [...document.querySelectorAll("main tbody tr")].map((row) => [...row.cells].map((each) => each.textContent.trim())));

// Returns which share of the map's pixels has about a colour.
const shareOf = (page, colour) => page.evaluate((wanted) => {
  const canvas = document.querySelector(".map canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) if (wanted.every((each, j) => Math.abs(each - data[i + j]) <= 3)) ++count;
  return (4 * count) / data.length;
}, colour);

test("the map is drawn as its legend says, and follows", async () => {
  const LOOKS = { light: { free: [241, 243, 246], hatched: [147, 84, 63], pale: [249, 210, 197], crossed: [183, 186, 191] },
                  dark: { free: [29, 34, 41], hatched: [203, 157, 135], pale: [79, 46, 32], crossed: [89, 94, 103] } };
  for (const [theme, looks] of Object.entries(LOOKS)) {
    const one = await new FakeServer(demo()).start();
    const opened = await openPage(one.url, { hash: `#/gpu/${GPU}`, theme });
    const { page } = opened;
    await page.waitForFunction(() => performance.getEntriesByName("gpumem-first-map").length > 0);
    const device = one.state.devices[0];
    const free = device.driver_free_bytes / device.capacity_bytes;
    const drawn = await shareOf(page, looks.free);
    assert.ok(drawn > free - 0.01 && drawn <= free, `${theme}: ${drawn} of the map is free memory, in place of ${free}`);
    for (const [look, least] of [["hatched", 0.01], ["pale", 0.008], ["crossed", 0.003]]) {
      assert.ok(await shareOf(page, looks[look]) > least, `${theme}: nothing is ${look}`);
    }
    one.change({ segments: { gone: one.state.segments.map((each) => each.segment_id) }, tenants: { gone: one.state.tenants.map((each) => each.usage.tenant) },
                 devices: { set: [{ ...device, charged_bytes: 0, driver_free_bytes: 0 }] } });
    await page.waitForFunction(() => /No tenant holds memory here/.test(document.querySelector("main").textContent));
    const end = Date.now() + 6000;
    while (await shareOf(page, looks.free) < 0.95) assert.ok(Date.now() < end, `${theme}: the map does not follow`);
    assert.deepEqual(await opened.close(), []);
    await one.stop();
  }
});

test("a tap tells what is there", async () => {
  const opened = await openPage(server.url, { hash: `#/gpu/${GPU}` });
  const { page } = opened;
  await page.waitForFunction(() => performance.getEntriesByName("gpumem-first-map").length > 0);
  const map = page.locator(".map").first();
  await map.click({ position: { x: 60, y: 120 } });
  await page.mouse.move(1, 1); // what was tapped stays
  await says(page, ".details .eyebrow", /Segment/);
  assert.ok(await page.locator(".map-mark").isVisible());
});

test("a chart has the lines of its tenants", async () => {
  const one = await new FakeServer(demo()).start();
  const opened = await openPage(one.url, { hash: "#/tenant/bob" });
  const { page } = opened;
  await says(page, ".u-legend", /charged36\.00 GiBleased36\.00 GiBlimit24\.00 GiBwaits for2\.00 GiB/);
  await page.evaluate(() => { location.hash = "#/tenant/serving"; });
  await says(page, ".u-legend", /limit48\.00 GiBguarantee32\.00 GiB/);
  await page.evaluate((to) => { location.hash = to; }, `#/gpu/${GPU}`);
  await says(page, ".u-legend", /^atnowuser-10071\.00 GiBbatch-77315\.25 GiBresearch25\.00 GiBserving32\.00 GiB$/);
  one.change({ tenants: { gone: ["user-1007"] } });
  await says(page, "main", /Without 1 tenant/);
  assert.doesNotMatch(await page.locator(".u-legend").textContent(), /user-1007/);
  await one.stop();
});

test("events are filtered, wait, and come once", async () => {
  const one = await new FakeServer(demo()).start();
  const opened = await openPage(one.url, { hash: "#/events" });
  const { page } = opened;
  await says(page, "tbody", /session opened/);
  const before = (await rowsOf(page)).length;
  await page.locator(".filters select").selectOption("granted");
  assert.ok((await rowsOf(page)).every((row) => row[1] === "granted"));
  await page.locator(".filters select").selectOption("");
  await page.locator(".filters input").fill("train.py");
  assert.equal((await rowsOf(page)).length, 1);
  await page.locator(".filters input").fill("");
  await page.getByRole("button", { name: "Pause" }).click();
  one.addEvent({ event: "lost", tenant: "alice", text: "while it pauses" });
  const { waiting } = one.state;
  one.change({ waiting: [] });
  await says(page, "nav a[href='#/waiting']", /^Queue$/); // it comes after the event
  assert.equal((await rowsOf(page)).length, before);
  await page.getByRole("button", { name: "Go on" }).click();
  await says(page, "tbody", /while it pauses/);
  for (const stream of one.streams) stream.destroy();
  await page.waitForSelector(".banner");
  await page.waitForFunction(() => !document.querySelector(".banner"));
  one.change({ waiting });
  await says(page, "nav a[href='#/waiting']", /^Queue3$/); // it comes after the past events
  assert.equal((await rowsOf(page)).length, before + 1, "a stream that begins anew repeats nothing");
  await page.evaluate(() => { location.hash = "#/session/21"; });
  await says(page, "h1", /train/);
  const about = await page.locator("section", { hasText: "Events" }).last().locator("tbody tr").count();
  assert.equal(about, 1);
  await page.evaluate(() => { location.hash = "#/segment/100"; });
  await says(page, "h1", /Segment 100/);
  assert.equal(await page.locator("section", { hasText: "Events" }).last().locator("tbody tr").count(), 1);
  await one.stop();
});

test("the queue says behind whom, and what would help", async () => {
  const opened = await openPage(server.url, { hash: "#/waiting" });
  const { page } = opened;
  await says(page, "nav a[href='#/waiting']", /^Queue3$/);
  const rows = await rowsOf(page);
  assert.deepEqual(rows.map((row) => [row[2], row[4], row[6]]),
                   [["batch-7731", "24.00 GiB", "first in line"], ["user-1007", "2.00 GiB", "batch-7731"], ["bob", "4 x 512.00 MiB", "first in line"]]);
  assert.match(rows[0][7], /Wait until 9\.50 GiB are released/);
});

test("names in the map's details are text", async () => {
  const server = await new FakeServer(hostile()).start();
  const { page } = await openPage(server.url, { hash: `#/gpu/${GPU}` });
  await page.waitForFunction(() => performance.getEntriesByName("gpumem-first-map").length > 0);
  await page.locator(".map").first().focus();
  for (let i = 0; i < 13; ++i) {
    await page.keyboard.press("ArrowRight");
    assert.equal(await page.locator(".details h2 a > *, .details img, .details svg").count(), 0);
  }
  await server.stop();
});

test("the key goes with each call, and goes when it is refused", async () => {
  const server = await new FakeServer(demo(), { login: true }).start();
  const { page } = await openPage(`${server.url}`, { hash: "#login=once", key: undefined });
  await page.waitForFunction(() => /seen as alice/.test(document.querySelector("footer")?.textContent));
  server.keys.clear();
  await page.reload();
  await page.waitForFunction(() => /gpumemctl web/.test(document.querySelector("main")?.textContent));
  assert.equal(await page.evaluate(() => sessionStorage.getItem("gpumem-web-key")), null);
  await server.stop();
});
