// SPDX-License-Identifier: Apache-2.0
// Moves over a treemap by keys: left and right among neighbours, down into a tile, up out of it.
import type { Sized, Tile } from "./layout";

/** Returns the tile that a key leads to; the same one if it leads nowhere; -1 for no such key. */
export function moveBy(key: string, tiles: readonly Tile<Sized>[], at: number): number {
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) return -1;
  const children = (parent: number) =>
    tiles.flatMap((tile, i) => (tile.parent === parent ? [i] : []));
  const tile = tiles[at];
  if (!tile || at === 0) return children(0)[0] ?? 0;
  const siblings = children(tile.parent);
  const place = siblings.indexOf(at);
  switch (key) {
    case "ArrowRight":
      return siblings[place + 1] ?? at;
    case "ArrowLeft":
      return siblings[place - 1] ?? at;
    case "ArrowDown":
      return children(at)[0] ?? at;
    case "ArrowUp":
      return tile.parent > 0 ? tile.parent : at;
    case "Home":
      return siblings[0] ?? at;
    default:
      return siblings[siblings.length - 1] ?? at;
  }
}
