// SPDX-License-Identifier: Apache-2.0
// Draws the tiles of a treemap on a canvas.
import { formatBytes } from "../lib/format";
import { placeOf } from "../lib/model";
import { coloursOf, GROUND, mix } from "../lib/palette";
import type { Store } from "../lib/store";
import type { LayoutOptions, Rect, Tile } from "./layout";
import type { TreeNode } from "./tree";

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const STEP = 7; // pixels between the lines of a hatch

/** Returns how much room names and edges take. Small maps name tenants alone. */
export function layoutOptions(small: boolean): LayoutOptions<TreeNode> {
  return {
    header: (node, depth, rect) => {
      if (depth === 0) return 0;
      if (node.kind === "tenant" || (node.kind === "outside" && !small)) {
        return rect.height > 40 && rect.width > 56 ? (small ? 17 : 19) : 0;
      }
      return !small && rect.height > 42 && rect.width > 64 ? 16 : 0;
    },
    padding: (node, depth) => (depth === 0 ? 0 : node.kind === "tenant" ? 2 : 1),
    least: 6,
  };
}

interface Brush {
  context: CanvasRenderingContext2D;
  dark: boolean;
  ground: string;
  small: boolean;
  hatch: CanvasPattern | null;
  cross: CanvasPattern | null;
}

function pattern(context: CanvasRenderingContext2D, colour: string, both: boolean,
                 ratio: number): CanvasPattern | null {
  const size = Math.round(STEP * ratio);
  const tile = document.createElement("canvas");
  tile.width = size;
  tile.height = size;
  const inside = tile.getContext("2d");
  if (!inside) return null;
  inside.strokeStyle = colour;
  inside.lineWidth = Math.max(1, 1.6 * ratio);
  inside.beginPath();
  for (const shift of [-size, 0, size]) {
    inside.moveTo(shift - 1, size + 1);
    inside.lineTo(shift + size + 1, -1);
    if (both) {
      inside.moveTo(shift - 1, -1);
      inside.lineTo(shift + size + 1, size + 1);
    }
  }
  inside.stroke();
  const made = context.createPattern(tile, "repeat");
  // Patterns are in pixels of the device; the canvas draws in those of the page.
  made?.setTransform(new DOMMatrix().scale(1 / ratio));
  return made;
}

// Cuts a text to a width, with an ellipsis.
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (width < 14) return "";
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = Math.min(text.length, Math.ceil(width / 3));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low < 2 ? "" : `${text.slice(0, low)}…`;
}

function label(brush: Brush, rect: Rect, lines: string[], colour: string, bold: boolean): void {
  const { context } = brush;
  context.fillStyle = colour;
  context.font = `${bold ? "600 " : ""}11.5px ${FONT}`;
  let y = rect.y + 3;
  for (const line of lines) {
    if (y + 12 > rect.y + rect.height) return;
    context.fillText(line, rect.x + 4, y);
    y += 14;
    context.font = `11.5px ${FONT}`;
  }
}

// Returns the lines that fit. A size is whole or not there: a part of it would be another size.
function fitting(brush: Brush, tile: Tile<TreeNode>, name: string, named: boolean): string[] {
  const { context } = brush;
  context.font = `11.5px ${FONT}`;
  const room = tile.width - 8;
  const size = formatBytes(tile.node.bytes);
  const fits = (text: string) => context.measureText(text).width <= room;
  const lines: string[] = [];
  const cut = named ? fitted(context, name, room) : fits(name) ? name : "";
  if (named && cut) lines.push(cut);
  if (fits(size)) lines.push(size);
  if (!named && cut && lines.length > 0) lines.push(cut);
  return tile.height > 34 ? lines : tile.height > 16 ? lines.slice(0, 1) : [];
}

function strip(brush: Brush, tile: Tile<TreeNode>, colour: string, bold: boolean): void {
  const { context } = brush;
  const size = formatBytes(tile.node.bytes);
  context.font = `11.5px ${FONT}`;
  const sizeWidth = context.measureText(size).width;
  context.fillStyle = colour;
  const y = tile.y + (tile.header - 12) / 2;
  let room = tile.width - 8;
  if (room > sizeWidth + 50) {
    context.fillText(size, tile.x + tile.width - sizeWidth - 4, y);
    room -= sizeWidth + 10;
  }
  context.font = `${bold ? "600 " : ""}11.5px ${FONT}`;
  const text = fitted(context, tile.node.label, room);
  if (text) context.fillText(text, tile.x + 4, y);
}

function drawTile(brush: Brush, store: Store, tile: Tile<TreeNode>): void {
  const { context, dark, ground } = brush;
  const { node, x, y } = tile;
  // A pixel between neighbours, unless that is most of the tile.
  const gap = tile.width > 3 && tile.height > 3 ? 1 : 0;
  const width = tile.width - gap;
  const height = tile.height - gap;
  const colours = coloursOf(node.tenant === "" ? -1 : placeOf(store, node.tenant), dark);
  const open = node.children.length > 0 && !tile.whole;
  switch (node.kind) {
    case "device":
      return;
    case "free":
      context.fillStyle = dark ? "#1d2229" : "#f1f3f6";
      context.fillRect(x, y, width, height);
      label(brush, tile, fitting(brush, tile, node.label, true), dark ? "#aeb7c2" : "#4a5462", false);
      return;
    case "outside":
    case "process":
      context.fillStyle = dark ? "#3a404a" : "#d5d9df";
      context.fillRect(x, y, width, height);
      if (!open && brush.cross) {
        context.fillStyle = brush.cross;
        context.fillRect(x, y, width, height);
      }
      if (open) {
        if (tile.header) strip(brush, tile, dark ? "#ffffff" : "#10141a", true);
        return;
      }
      if (brush.small) return;
      plate(brush, tile, fitting(brush, tile, node.label, true), dark ? "#3a404a" : "#d5d9df",
            dark ? "#ffffff" : "#10141a");
      return;
    default:
      break;
  }
  if (open) {
    // A frame: the names of tenants and holders stand on it.
    context.fillStyle = node.kind === "tenant" ? mix(colours.fill, ground, dark ? 0.6 : 0.62)
                                               : mix(colours.fill, ground, dark ? 0.42 : 0.36);
    context.fillRect(x, y, width, height);
    if (tile.header) strip(brush, tile, colours.text, node.kind === "tenant");
    return;
  }
  const fill = node.pale ? colours.pale : colours.fill;
  context.fillStyle = fill;
  context.fillRect(x, y, width, height);
  if (node.shared && brush.hatch && width > 2 && height > 2) {
    context.fillStyle = brush.hatch;
    context.fillRect(x, y, width, height);
  }
  if (width < 44 || height < 17 || (brush.small && node.kind !== "tenant")) return;
  const lines = fitting(brush, tile, node.label, node.kind !== "segment");
  if (node.shared) plate(brush, tile, lines, fill, colours.text);
  else label(brush, tile, lines, colours.text, node.kind === "tenant");
}

// Text on a plate of the tile's colour, so that a hatch does not run through it.
function plate(brush: Brush, tile: Tile<TreeNode>, lines: string[], ground: string, colour: string): void {
  if (lines.length === 0) return;
  const { context } = brush;
  context.font = `11.5px ${FONT}`;
  const width = Math.max(...lines.map((each) => context.measureText(each).width));
  context.fillStyle = ground;
  context.fillRect(tile.x + 1, tile.y + 1, Math.min(width + 7, tile.width - 3), lines.length * 14 + 3);
  label(brush, tile, lines, colour, false);
}

/** Draws all tiles. Sets the canvas' size to the area, in pixels of the device. */
export function drawMap(canvas: HTMLCanvasElement, store: Store, tiles: readonly Tile<TreeNode>[],
                        area: Rect, dark: boolean, small: boolean): void {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const width = Math.max(1, Math.round(area.width * ratio));
  const height = Math.max(1, Math.round(area.height * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d", { alpha: false });
  if (!context) return;
  const ground = dark ? GROUND.dark : GROUND.light;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = ground;
  context.fillRect(0, 0, area.width, area.height);
  context.textBaseline = "top";
  const brush: Brush = {
    context, dark, ground, small,
    hatch: pattern(context, dark ? "rgba(255,255,255,0.45)" : "rgba(0,0,0,0.38)", false, ratio),
    cross: pattern(context, dark ? "rgba(255,255,255,0.16)" : "rgba(0,0,0,0.14)", true, ratio),
  };
  for (const tile of tiles) drawTile(brush, store, tile);
}
