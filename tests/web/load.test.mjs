// SPDX-License-Identifier: Apache-2.0
// 10,000 segments and 1,000 tenants: the first picture, frames while updates come, and memory. The
// figures are printed; the bounds are wide enough for a busy machine that draws in software.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { closeBrowser, openPage } from "./browser.mjs";
import { FakeServer } from "./fake_server.mjs";
import { big, demo, GPU, MIB } from "./scenarios.mjs";

const FIRST_MS = Number(process.env.GPUMEM_WEB_FIRST_MS ?? 4000); // the aim is 1,000
const FRAME_MS = Number(process.env.GPUMEM_WEB_FRAME_MS ?? 100); // of the 95th in 100; the aim is 16
const MEMORY = 16 * MIB;

let server;
before(async () => {
  server = await new FakeServer(big()).start();
});
after(async () => {
  await closeBrowser();
  await server?.stop();
});

const percentile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];

// Times between frames, and the page's own work in them.
async function frames(page, meanwhile) {
  await page.evaluate(() => {
    const times = [];
    window.frameTimes = times;
    window.longTasks = [];
    let last = performance.now();
    const tick = (now) => {
      if (window.frameTimes !== times) return;
      times.push(now - last);
      last = now;
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    window.observer = new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration)));
    window.observer.observe({ type: "longtask" });
  });
  await meanwhile();
  const told = await page.evaluate(() => {
    const result = { times: window.frameTimes, long: window.longTasks };
    window.frameTimes = null;
    window.observer.disconnect();
    return result;
  });
  const sorted = told.times.slice(1).sort((a, b) => a - b);
  return { frames: sorted.length, median: percentile(sorted, 0.5), p95: percentile(sorted, 0.95), worst: sorted.at(-1),
           long: told.long.length, longest: Math.max(0, ...told.long) };
}

const figures = (name, told) =>
  console.log(`${name}: ${told.frames} frames, median ${told.median.toFixed(1)} ms, 95 in 100 below ${told.p95.toFixed(1)} ms, ` +
              `worst ${told.worst.toFixed(1)} ms; ${told.long} tasks above 50 ms, the longest ${told.longest.toFixed(0)} ms`);

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function mapDrawn(page) {
  await page.waitForFunction(() => performance.getEntriesByName("gpumem-first-map").length > 0);
}

test("the first picture", async () => {
  const all = [];
  for (let i = 0; i < 3; ++i) {
    const opened = await openPage(server.url, { hash: `#/gpu/${GPU}` });
    await mapDrawn(opened.page);
    all.push(await opened.page.evaluate(() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
      map: performance.getEntriesByName("gpumem-first-map")[0].startTime,
    })));
    assert.deepEqual(await opened.close(), []);
  }
  const last = (field) => all.map((each) => each[field]).sort((a, b) => a - b)[1];
  console.log(`first paint after ${last("paint").toFixed(0)} ms, the map of 10,000 segments after ${last("map").toFixed(0)} ms (medians of 3)`);
  assert.ok(last("paint") < FIRST_MS && last("map") < FIRST_MS);
});

test("frames while idle updates come", async () => {
  const opened = await openPage(server.url, { hash: `#/gpu/${GPU}` });
  await mapDrawn(opened.page);
  await pause(1500);
  // What a node without a change of its memory sends: ticks, and counters of tenants.
  const idle = await frames(opened.page, async () => {
    for (let i = 0; i < 6; ++i) {
      server.send("tick", { time_ms: Date.now() });
      server.change({ tenants: { set: server.state.tenants.slice(0, 50).map((each) => ({ ...each, usage: { ...each.usage, denials: i + 1 } })) } });
      await pause(1000);
    }
  });
  figures("idle updates each second", idle);

  // A busy node: 100 segments of 10,000 are others each second.
  let next = 1_000_000;
  const busy = await frames(opened.page, async () => {
    for (let i = 0; i < 6; ++i) {
      const gone = server.state.segments.slice(0, 100);
      server.change({
        segments: { gone: gone.map((each) => each.segment_id), set: gone.map((each) => ({ ...each, segment_id: ++next, size_bytes: each.size_bytes + 2 * MIB })) },
        tenants: { set: server.state.tenants.slice(0, 100) },
      });
      await pause(1000);
    }
  });
  figures("100 segments change each second", busy);

  // A storm of events, at a view that shows them beside other tables.
  await opened.page.evaluate(() => { location.hash = "#/tenant/user-1001"; });
  await opened.page.waitForSelector(".u-legend");
  const storm = await frames(opened.page, async () => {
    for (let i = 0; i < 200; ++i) {
      for (let j = 0; j < 5; ++j) server.addEvent({ event: "granted", tenant: "user-1001", text: `granted ${i} ${j}`, fields: { session: 2 } });
      await pause(25);
    }
  });
  figures("200 events each second", storm);
  assert.ok(idle.p95 < FRAME_MS, "frames are late");
  assert.deepEqual(await opened.close(), []);
});

test("memory does not grow over 1,000 changes", async () => {
  const small = await new FakeServer(demo()).start();
  const opened = await openPage(small.url, { hash: `#/gpu/${GPU}` });
  const { page } = opened;
  await mapDrawn(page);
  const used = async () => {
    await page.evaluate(() => window.gc?.());
    return page.evaluate(() => performance.memory.usedJSHeapSize);
  };
  let id = 1_000_000;
  const churn = async (count) => {
    for (let i = 0; i < count; ++i) {
      const old = small.state.segments.at(-1);
      const { user: _, ...more } = old;
      small.change({
        segments: { gone: [old.segment_id], set: [{ ...more, segment_id: ++id, size_bytes: (1 + (i % 5)) * 256 * MIB }] },
        tenants: { set: small.state.tenants },
      });
      small.addEvent({ event: "granted", tenant: "alice", text: `granted ${i}`, fields: { session: 21 } });
      if (i % 20 === 0) await pause(10);
    }
    await page.waitForFunction((last) => document.title !== "" && last > 0, id);
    await pause(300);
  };
  await churn(1200); // fills the list of events that the page keeps
  const before = await used();
  await churn(1000);
  const later = await used();
  console.log(`the page's heap: ${(before / MIB).toFixed(1)} MiB, after 1,000 changes ${(later / MIB).toFixed(1)} MiB`);
  assert.ok(later - before < MEMORY, "the page's memory grows");
  assert.deepEqual(await opened.close(), []);
  await small.stop();
});
