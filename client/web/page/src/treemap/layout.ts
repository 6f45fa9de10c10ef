// SPDX-License-Identifier: Apache-2.0
// Squarified treemaps (Bruls, Huizing and van Wijk, 2000): rectangles whose areas are in proportion
// to sizes, as square as possible. No drawing, no state.

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/**
 * Returns one rectangle for each size, in their order, that together fill `area`.
 * Requires sizes that are not negative; works best if the largest come first.
 */
export function squarify(sizes: readonly number[], area: Rect): Rect[] {
  let sum = 0;
  for (const size of sizes) sum += size;
  const rects: Rect[] = new Array(sizes.length);
  if (sum <= 0 || area.width <= 0 || area.height <= 0) {
    return sizes.map(() => ({ x: area.x, y: area.y, width: 0, height: 0 }));
  }
  const scale = (area.width * area.height) / sum;
  let { x, y, width, height } = area;
  let at = 0;
  while (at < sizes.length) {
    const side = Math.min(width, height);
    let end = at;
    let row = 0;
    let least = Infinity;
    let most = 0;
    let best = Infinity;
    while (end < sizes.length) {
      const size = sizes[end]! * scale;
      const nextRow = row + size;
      const nextLeast = Math.min(least, size);
      const nextMost = Math.max(most, size);
      const square = nextRow * nextRow;
      const worst = nextRow <= 0 ? Infinity
        : Math.max((side * side * nextMost) / square, square / (side * side * nextLeast));
      if (end > at && worst > best) break;
      best = worst;
      row = nextRow;
      least = nextLeast;
      most = nextMost;
      ++end;
    }
    // The row stands along the shorter side.
    const thickness = side > 0 ? Math.min(row / side, Math.max(width, height)) : 0;
    let offset = 0;
    for (let i = at; i < end; ++i) {
      const length = row > 0 ? ((sizes[i]! * scale) / row) * side : 0;
      rects[i] = width >= height ? { x, y: y + offset, width: thickness, height: length }
                                 : { x: x + offset, y, width: length, height: thickness };
      offset += length;
    }
    if (width >= height) {
      x += thickness;
      width = Math.max(0, width - thickness);
    } else {
      y += thickness;
      height = Math.max(0, height - thickness);
    }
    at = end;
  }
  return rects;
}

export interface Sized {
  bytes: number;
  children: readonly Sized[];
}

export interface Tile<N extends Sized> extends Rect {
  node: N;
  parent: number; // place of the parent's tile in the list; -1: none
  depth: number; // 0: the root
  header: number; // height of the strip with its name; 0: none
  whole: boolean; // its children have no tiles: there is no room
}

export interface LayoutOptions<N> {
  header: (node: N, depth: number, rect: Rect) => number;
  padding: (node: N, depth: number) => number;
  least: number; // area in pixels that a child has on average, for children to get tiles
}

/** Returns the tiles of a tree, parents before their children. */
export function layout<N extends Sized & { children: readonly N[] }>(
  root: N, area: Rect, options: LayoutOptions<N>): Tile<N>[] {
  const tiles: Tile<N>[] = [];
  const add = (node: N, rect: Rect, parent: number, depth: number): void => {
    const header = node.children.length > 0 ? options.header(node, depth, rect) : 0;
    const pad = node.children.length > 0 ? options.padding(node, depth) : 0;
    const inner = {
      x: rect.x + pad,
      y: rect.y + Math.max(header, pad),
      width: rect.width - 2 * pad,
      height: rect.height - Math.max(header, pad) - pad,
    };
    const room = Math.max(0, inner.width) * Math.max(0, inner.height);
    const whole = node.children.length > 0 &&
      (inner.width < 2 || inner.height < 2 || room / node.children.length < options.least);
    const at = tiles.length;
    tiles.push({ ...rect, node, parent, depth, header, whole });
    if (whole || node.children.length === 0) return;
    const rects = squarify(node.children.map((child) => child.bytes), inner);
    (node.children as readonly N[]).forEach((child, i) => add(child, rects[i]!, at, depth + 1));
  };
  add(root, area, -1, 0);
  return tiles;
}

/** Returns the place of the deepest tile at a point; -1 if there is none. */
export function tileAt(tiles: readonly Rect[], x: number, y: number): number {
  for (let i = tiles.length - 1; i >= 0; --i) {
    const tile = tiles[i]!;
    if (x >= tile.x && x < tile.x + tile.width && y >= tile.y && y < tile.y + tile.height) return i;
  }
  return -1;
}
