// SPDX-License-Identifier: Apache-2.0
// Parts of the page without a browser: sizes and ages, the layout, the stream's parser, the state.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const page = resolve(here, "../../client/web/page");
const require = createRequire(join(process.env.GPUMEM_WEB_PAGE_PACKAGES ?? page, "x.js"));
const { buildSync } = require("esbuild");
const folder = mkdtempSync(join(process.env.TEST_TMPDIR ?? tmpdir(), "units-"));
after(() => rmSync(folder, { recursive: true }));

// The sources are TypeScript: a bundle of those without a view, for node.
const NAMES = ["lib/format", "lib/model", "lib/palette", "lib/routes", "lib/sse", "lib/store", "lib/timeline", "lib/find",
               "treemap/layout", "treemap/keys", "treemap/tree"];
writeFileSync(join(folder, "entry.ts"), NAMES.map((each) => `export * from ${JSON.stringify(join(page, "src", each))};`).join("\n"));
buildSync({ entryPoints: [join(folder, "entry.ts")], bundle: true, format: "esm", platform: "node", outfile: join(folder, "units.mjs"),
            logLevel: "error", preserveSymlinks: true });
const u = await import(pathToFileURL(join(folder, "units.mjs")));
const { demo, GPU, GIB, MIB } = await import("./scenarios.mjs");

test("sizes are those of gpumemctl", () => {
  // As common/bytes_test.cc has them.
  const told = [[0, "0 B"], [1023, "1023 B"], [1024, "1.00 KiB"], [1536, "1.50 KiB"], [6 * GIB, "6.00 GiB"],
                [MIB - 1, "1.00 MiB"], [GIB - 1, "1.00 GiB"], [1024 * MIB - 6 * 1024, "1023.99 MiB"], [85_520_809_984, "79.65 GiB"], [2 ** 50, "1.00 PiB"]];
  for (const [bytes, text] of told) assert.equal(u.formatBytes(bytes), text);
  assert.equal(u.formatBytes(undefined), "0 B");
});

test("ages and shares are those of gpumemctl", () => {
  for (const [age, text] of [[0, "0ms"], [999, "999ms"], [1000, "1s"], [59_999, "59s"], [60_000, "1m00s"], [3_599_000, "59m59s"],
                             [3_600_000, "1h00m"], [86_399_000, "23h59m"], [86_400_000, "1d00h"], [-5, "0ms"]]) {
    assert.equal(u.formatAge(age), text);
  }
  for (const [part, whole, text] of [[0, 0, "-"], [0, 8, "0%"], [1, 1000, "<1%"], [999, 1000, "99%"], [8, 8, "100%"], [1, 8, "12%"], [3, 8, "38%"], [5, 200, "2%"]]) {
    assert.equal(u.formatPercent(part, whole), text, `${part} of ${whole}`);
  }
});

test("hidden characters show", () => {
  assert.equal(u.shown("a\u0007b\u202ec\n"), "a\\x07b\\u202ec\\x0a");
  assert.equal(u.shown("plain <b>"), "plain <b>");
  assert.equal(u.shown("\u200b\u2066\ufeff\u00ad"), "\\u200b\\u2066\\ufeff\\xad");
  assert.equal(u.shown("x".repeat(5000)).length, 201);
});

test("addresses name any object", () => {
  for (const [tenant, name] of [["a/b", "c d"], ["%41", "#x?y"], ["ü", "\u202e"], ["..", "."]]) {
    assert.deepEqual(u.parseRoute(u.hrefs.publication(tenant, name)), { view: "publication", names: [tenant, name] });
  }
  assert.deepEqual(u.parseRoute(""), { view: "", names: [] });
  assert.doesNotThrow(() => u.hrefs.tenant("\ud800"));
});

// Random numbers that are the same in each run.
function random(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 4294967296;
  };
}

test("a layout fills the area in proportion, without overlap", () => {
  const next = random(7);
  for (let round = 0; round < 300; ++round) {
    const count = 1 + Math.floor(next() * 60);
    const sizes = Array.from({ length: count }, () => Math.ceil(next() ** 6 * 1e11)).sort((a, b) => b - a);
    const area = { x: 3, y: 5, width: 20 + next() * 1200, height: 20 + next() * 800 };
    const rects = u.squarify(sizes, area);
    const sum = sizes.reduce((all, each) => all + each, 0);
    rects.forEach((rect, i) => {
      const wanted = (area.width * area.height * sizes[i]) / sum;
      assert.ok(Math.abs(rect.width * rect.height - wanted) < 1e-6 * area.width * area.height);
      assert.ok(rect.x >= area.x - 1e-6 && rect.x + rect.width <= area.x + area.width + 1e-6);
      assert.ok(rect.y >= area.y - 1e-6 && rect.y + rect.height <= area.y + area.height + 1e-6);
    });
    for (let i = 0; i < count; ++i) {
      for (let j = 0; j < i; ++j) {
        const [a, b] = [rects[i], rects[j]];
        const wide = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
        const high = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
        assert.ok(wide <= 1e-6 || high <= 1e-6, "two overlap");
      }
    }
  }
  assert.deepEqual(u.squarify([0, 0], { x: 0, y: 0, width: 9, height: 9 }).map((each) => each.width), [0, 0]);
  assert.deepEqual(u.squarify([], { x: 0, y: 0, width: 9, height: 9 }), []);
});

test("the stream is cut into events, wherever the network cuts it", () => {
  const text = ": hello\n\nevent: snapshot\ndata: {\"a\":1}\n\nevent: tick\r\ndata: {}\r\n\r\n:\n\ndata: x\ndata: y\n\nevent: none\n\n";
  const whole = [{ event: "snapshot", data: "{\"a\":1}" }, { event: "tick", data: "{}" }, { event: "message", data: "x\ny" }];
  for (let size = 1; size < text.length + 1; ++size) {
    const events = [];
    const parser = new u.EventParser((each) => events.push(each));
    for (let at = 0; at < text.length; at += size) parser.push(text.slice(at, at + size));
    assert.deepEqual(events, whole, `in pieces of ${size}`);
  }
});

test("changes lead to the same state as a snapshot", () => {
  const next = random(3);
  const store = new u.Store();
  const model = new Map();
  store.applySnapshot({ number: 1, time_ms: 1, viewer: { sees: "all" }, segments: [] });
  for (let number = 2; number < 800; ++number) {
    const set = [];
    const gone = [];
    for (let i = 0; i < 4; ++i) {
      const id = Math.floor(next() * 40);
      if (next() < 0.4) {
        gone.push(id);
        model.delete(String(id));
      }
    }
    for (let i = 0; i < 4; ++i) {
      const segment = { segment_id: Math.floor(next() * 40), tenant: "t", device_uuid: "d", size_bytes: number };
      set.push(segment);
      model.set(String(segment.segment_id), segment);
    }
    store.applyChange({ number, time_ms: number, segments: { set, gone } });
    store.applyChange({ number: number - 1, time_ms: 0, segments: { gone: set.map((each) => each.segment_id) } }); // an old one
    assert.deepEqual([...store.segments].sort(), [...model].sort());
    assert.equal(u.segmentsOn(store, "d").length, model.size);
  }
  assert.ok(store.version("segments") > 0);
  store.applySnapshot({ number: 900, time_ms: 900, viewer: { sees: "all" }, segments: [] });
  assert.equal(store.segments.size, 0, "a snapshot replaces all");
});

test("the map has what gpumemctl map has, and every byte of the device", () => {
  const store = new u.Store();
  store.applySnapshot(demo());
  const device = store.devices.get(GPU);
  const holdings = u.holdingsOn(store, device);
  assert.equal(u.held(holdings.all), device.charged_bytes);
  const tree = u.deviceTree(store, device);
  const sum = (node) => node.children.reduce((all, each) => all + each.bytes, 0);
  assert.equal(sum(tree), device.capacity_bytes);
  const check = (node) => {
    if (node.children.length > 0 && node.kind !== "device") assert.equal(sum(node), node.bytes, node.key);
    node.children.forEach(check);
  };
  check(tree);
  const keys = new Set();
  const unique = (node) => {
    assert.ok(!keys.has(node.key), node.key);
    keys.add(node.key);
    node.children.forEach(unique);
  };
  unique(tree);
  for (const tile of u.layout(tree, { x: 0, y: 0, width: 900, height: 500 }, { header: () => 0, padding: () => 0, least: 0 })) {
    const wanted = (900 * 500 * tile.node.bytes) / device.capacity_bytes;
    assert.ok(Math.abs(tile.width * tile.height - wanted) < 1, `${tile.node.key} is as large as its share`);
  }
  const all = (node) => [node, ...node.children.flatMap(all)];
  const flat = all(tree);
  const outside = tree.children.find((each) => each.kind === "outside");
  assert.deepEqual(outside.children.map((each) => [each.label, each.bytes / MIB]),
                   [["blender · pid 8123", 1900], ["contexts and driver", 1392]]);
  const weights = flat.filter((each) => each.segment?.publications && each.tenant === "serving");
  assert.ok(weights.length === 12 && weights.every((each) => each.shared), "attached memory is shared");
  assert.equal(u.placeOf(store, "(others)"), -1);
  assert.deepEqual(u.deviceTree(store, device).children.map((each) => each.key), tree.children.map((each) => each.key));
});

test("keys reach every tile, and lead back", () => {
  const store = new u.Store();
  store.applySnapshot(demo());
  const tiles = u.layout(u.deviceTree(store, store.devices.get(GPU)), { x: 0, y: 0, width: 900, height: 500 },
                         { header: () => 16, padding: () => 1, least: 4 });
  const seen = new Set();
  const visit = (at) => {
    if (seen.has(at)) return;
    seen.add(at);
    for (const key of ["ArrowRight", "ArrowDown"]) visit(u.moveBy(key, tiles, at));
  };
  visit(u.moveBy("ArrowRight", tiles, -1));
  assert.equal(seen.size, tiles.length - 1);
  assert.equal(u.moveBy("a", tiles, 1), -1);
  const first = u.moveBy("ArrowDown", tiles, -1);
  assert.equal(u.moveBy("ArrowLeft", tiles, u.moveBy("ArrowRight", tiles, first)), first);
});

test("text on every colour of a tenant can be read", () => {
  for (const dark of [false, true]) {
    for (let place = -1; place < u.PALETTE_SIZE; ++place) {
      const colours = u.coloursOf(place, dark);
      assert.ok(u.contrast(colours.fill, colours.text) >= 4.5, `${place} ${dark} ${u.contrast(colours.fill, colours.text)}`);
      assert.ok(u.contrast(colours.pale, colours.paleText) >= 4.5, `${place} pale ${dark}`);
    }
  }
});

test("a timeline continues the daemon's record, and forgets after an hour", () => {
  const timeline = new u.Timeline("d");
  const begin = 10_000_000;
  timeline.load({ interval_ms: 10_000, since_ms: begin, now_ms: begin + 20_000,
                  series: [{ tenant: "a", device_uuid: "d", points: [[begin, 5, 9, 0, 0, 5], [begin + 10_000, 7, 9, 0, 0, 7]] },
                           { tenant: "a", device_uuid: "other", points: [[begin, 1, 1, 1, 1, 1]] }] });
  timeline.note("a", begin + 30_000, { device_uuid: "d", charged_bytes: 8, limit_bytes: 9, leased_bytes: 8 });
  timeline.note("b", begin + 31_000, { device_uuid: "d", charged_bytes: 2 });
  timeline.note("c", begin + 31_000, undefined);
  const moments = timeline.moments(["a", "b"], begin + 40_000);
  assert.deepEqual(moments, [begin, begin + 10_000, begin + 30_000, begin + 31_000, begin + 40_000]);
  assert.deepEqual(timeline.values("a", "charged", moments), [5, 7, 8, 8, 8]);
  assert.deepEqual(timeline.values("b", "charged", moments), [0, 0, 0, 2, 2]);
  assert.equal(timeline.series.has("c"), false);
  for (let i = 0; i < 100_000; ++i) timeline.note("a", begin + 40_000 + i * 100, { device_uuid: "d", charged_bytes: i });
  timeline.trim(begin + 40_000 + 10_000_000);
  assert.ok(timeline.series.get("a").times.length < 1000, "bounded, however often it changes");
  timeline.note("b", begin + 50_000, undefined);
  timeline.trim(begin + 40_000 + 10_000_000);
  assert.equal(timeline.series.has("b"), false);
});

test("the search finds by name, pid and number", () => {
  const store = new u.Store();
  store.applySnapshot(demo());
  const first = (typed) => u.find(store, typed)[0]?.href;
  assert.equal(first("pid 5344"), "#/session/22");
  assert.equal(first("LLAMA"), "#/publication/serving/llama-weights");
  assert.equal(first("segment 100"), "#/segment/100");
  assert.deepEqual(u.find(store, "  "), []);
  assert.ok(u.find(store, "e").length <= 30);
});

test("a stream that begins anew repeats no event, also of a daemon before", () => {
  const store = new u.Store();
  const of = (number, time_ms) => ({ number, time_ms, event: "granted", text: "" });
  const all = [of(400, 1000), of(401, 1001), of(1, 5000), of(2, 5001)];
  for (const each of [...all, ...all]) store.addEvent(each);
  assert.deepEqual(store.events, all);
});
