// SPDX-License-Identifier: Apache-2.0
// Makes a browser's pictures smaller without a change of a pixel: they are written in a hurry, and
// with an alpha channel.
import { crc32 as zlibCrc, deflateSync, inflateSync } from "node:zlib";

function crc32(data) {
  if (zlibCrc) return zlibCrc(data);
  let crc = -1;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; ++bit) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

function chunk(type, data) {
  const whole = Buffer.concat([Buffer.from(type, "latin1"), data]);
  const frame = Buffer.alloc(8);
  frame.writeUInt32BE(data.length, 0);
  frame.writeUInt32BE(crc32(whole), 4);
  return Buffer.concat([frame.subarray(0, 4), whole, frame.subarray(4)]);
}

function paeth(a, b, c) {
  const p = a + b - c;
  const [pa, pb, pc] = [Math.abs(p - a), Math.abs(p - b), Math.abs(p - c)];
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

// What the filter predicts from the byte to the left (a), above (b), and left above (c).
const PREDICT = [() => 0, (a) => a, (_a, b) => b, (a, b) => (a + b) >> 1, paeth];

/** Returns a PNG of 8 bits a channel, RGB or RGBA and opaque, as a smaller one of RGB. */
export function smaller(png) {
  const width = png.readUInt32BE(16);
  const height = png.readUInt32BE(20);
  const [depth, type, , , interlaced] = png.subarray(24, 29);
  const from = type === 6 ? 4 : 3;
  if (depth !== 8 || interlaced || (type !== 2 && type !== 6)) throw new Error("another sort of PNG");
  const parts = [];
  for (let at = 8; at < png.length; ) {
    const length = png.readUInt32BE(at);
    if (png.toString("latin1", at + 4, at + 8) === "IDAT") parts.push(png.subarray(at + 8, at + 8 + length));
    at += 12 + length;
  }
  const data = inflateSync(Buffer.concat(parts));
  const stride = width * from;
  const raw = Buffer.alloc(stride * height);
  for (let y = 0; y < height; ++y) {
    const predict = PREDICT[data[y * (stride + 1)]];
    for (let x = 0; x < stride; ++x) {
      const at = y * stride + x;
      const a = x >= from ? raw[at - from] : 0;
      const b = y > 0 ? raw[at - stride] : 0;
      const c = x >= from && y > 0 ? raw[at - stride - from] : 0;
      raw[at] = data[y * (stride + 1) + 1 + x] + predict(a, b, c);
    }
  }
  const row = width * 3;
  const rgb = Buffer.alloc(row * height);
  for (let pixel = 0; pixel < width * height; ++pixel) raw.copy(rgb, pixel * 3, pixel * from, pixel * from + 3);
  let best = null;
  for (const mode of ["none", "least", "up"]) {
    const compressed = deflateSync(filtered(rgb, row, height, mode), { level: 9, memLevel: 9 });
    if (!best || compressed.length < best.length) best = compressed;
  }
  const header = Buffer.from(png.subarray(16, 29));
  header[9] = 2;
  return Buffer.concat([png.subarray(0, 8), chunk("IHDR", header), chunk("IDAT", best), chunk("IEND", Buffer.alloc(0))]);
}

// Filters each row: not at all, by the row above, or by the filter that leaves the least.
function filtered(rgb, row, height, mode) {
  const out = Buffer.alloc((row + 1) * height);
  const tries = { none: [0], up: [2], least: [0, 1, 2, 3, 4] }[mode];
  const line = Buffer.alloc(row);
  for (let y = 0; y < height; ++y) {
    let least = Infinity;
    for (const filter of tries) {
      let sum = 0;
      for (let x = 0; x < row; ++x) {
        const at = y * row + x;
        const a = x >= 3 ? rgb[at - 3] : 0;
        const b = y > 0 ? rgb[at - row] : 0;
        const c = x >= 3 && y > 0 ? rgb[at - row - 3] : 0;
        line[x] = rgb[at] - PREDICT[filter](a, b, c);
        sum += line[x] < 128 ? line[x] : 256 - line[x];
      }
      if (sum >= least) continue;
      least = sum;
      out[y * (row + 1)] = filter;
      line.copy(out, y * (row + 1) + 1);
    }
  }
  return out;
}
