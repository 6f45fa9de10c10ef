// SPDX-License-Identifier: Apache-2.0
// Makes the documents' pictures of the page: pictures.mjs FOLDER
import assert from "node:assert/strict";
import { mkdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { closeBrowser, openPage, waitForView } from "./browser.mjs";
import { FakeServer } from "./fake_server.mjs";
import { smaller } from "./png.mjs";
import { demo, GPU } from "./scenarios.mjs";

const MOST = 100 * 1024;
const folder = process.argv[2];
mkdirSync(folder, { recursive: true });

const PICTURES = [
  { name: "web-gpu-light.png", hash: `#/gpu/${GPU}`, width: 1000, height: 690, point: true },
  { name: "web-gpu-dark.png", hash: `#/gpu/${GPU}`, width: 1000, height: 690, theme: "dark", point: true },
  { name: "web-timeline.png", hash: "#/tenant/serving", width: 880, height: 400, clip: "section:has(.timeline)" },
  { name: "web-queue.png", hash: "#/waiting", width: 1200, height: 480 },
  { name: "web-phone.png", hash: `#/gpu/${GPU}`, width: 360, height: 740 },
];

const server = await new FakeServer(demo()).start();
for (const { name, hash, width, height, theme, clip, point } of PICTURES) {
  const opened = await openPage(server.url, { hash, width, height, theme });
  const { page } = opened;
  await waitForView(page);
  if (clip || point) await page.waitForSelector(".u-legend");
  if (point) {
    const box = await page.locator(".map").first().boundingBox();
    await page.mouse.move(box.x + 14, box.y + 70); // a shared segment
    await page.waitForSelector(".details h2");
  }
  await page.evaluate(() => document.fonts.ready);
  const path = join(folder, name);
  writeFileSync(path, smaller(await (clip ? page.locator(clip) : page).screenshot()));
  assert.deepEqual(await opened.close(), []);
  const { size } = statSync(path);
  console.log(`${name}: ${size} bytes`);
  assert.ok(size <= MOST, `${name} is too large`);
}
await closeBrowser();
await server.stop();
