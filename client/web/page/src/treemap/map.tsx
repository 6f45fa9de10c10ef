// SPDX-License-Identifier: Apache-2.0
// A device's memory as a map to look at, to point at and to walk through by keys.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { follow, store } from "../lib/instance";
import type { Topic } from "../lib/store";
import { useDark } from "../lib/theme";
import { formatBytes } from "../lib/format";
import { Details } from "./details";
import { drawMap, layoutOptions } from "./draw";
import { moveBy } from "./keys";
import { layout, tileAt, type Tile } from "./layout";
import { spoken, type TreeNode } from "./tree";

const TOPICS: Topic[] = ["devices", "tenants", "sessions", "segments", "published", "status"];

const FIRST = "gpumem-first-map"; // for who measures when the first map was drawn

export interface MapProps {
  build: () => TreeNode | null; // the tree as of now
  name: string; // for people who hear it
  id: string; // changes with what the map is of
  small?: boolean; // a picture without details, in a link
}

// What a drawing depends on. Two trees with the same mark look the same.
function markOf(tree: TreeNode): string {
  const parts: (string | number)[] = [];
  const add = (node: TreeNode) => {
    parts.push(node.key, node.bytes, node.stamp, node.label);
    // What stands below a tenant's holders is in its stamp.
    for (const child of node.children) {
      if (child.kind === "tenant" || child.stamp === 0 && node.kind !== "tenant") add(child);
      else parts.push(child.key, child.bytes);
    }
  };
  add(tree);
  return parts.join("\u0001");
}

function pathTo(tiles: readonly Tile<TreeNode>[], at: number): TreeNode[] {
  const path: TreeNode[] = [];
  for (let i = at; i >= 0; i = tiles[i]!.parent) path.unshift(tiles[i]!.node);
  return path;
}

export function Treemap({ build, name, id, small }: MapProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const mark = useRef<HTMLDivElement>(null);
  const drawn = useRef({ tiles: [] as Tile<TreeNode>[], mark: "", width: 0, height: 0, dark: false });
  const [chosen, setChosen] = useState(""); // keys of nodes
  const [pointed, setPointed] = useState("");
  const [said, setSaid] = useState("");
  const [, setDrawings] = useState(0);
  const dark = useDark();

  const refresh = () => {
    const element = box.current;
    const tree = build();
    if (!element || !canvas.current || !tree) return;
    const width = Math.floor(element.clientWidth);
    const height = Math.floor(element.clientHeight);
    const last = drawn.current;
    const next = markOf(tree);
    if (next === last.mark && width === last.width && height === last.height && dark === last.dark) {
      return;
    }
    const area = { x: 0, y: 0, width, height };
    const tiles = layout(tree, area, layoutOptions(small ?? false));
    drawMap(canvas.current, store, tiles, area, dark, small ?? false);
    if (!performance.getEntriesByName(FIRST).length) performance.mark(FIRST);
    drawn.current = { tiles, mark: next, width, height, dark };
    setDrawings((count) => count + 1);
  };
  const current = useRef(refresh);
  current.current = refresh;

  useLayoutEffect(() => {
    current.current();
  }, [id, dark]);
  useEffect(() => {
    setChosen("");
    setPointed("");
    const stop = follow(TOPICS, () => current.current());
    const observer = new ResizeObserver(() => current.current());
    if (box.current) observer.observe(box.current);
    return () => {
      stop();
      observer.disconnect();
    };
  }, [id]);

  const { tiles } = drawn.current;
  const find = (key: string) => (key ? tiles.findIndex((tile) => tile.node.key === key) : -1);
  const shownAt = find(pointed) >= 0 ? find(pointed) : find(chosen);
  useLayoutEffect(() => {
    const tile = tiles[shownAt];
    if (!mark.current) return;
    mark.current.hidden = !tile;
    if (!tile) return;
    mark.current.style.left = `${tile.x}px`;
    mark.current.style.top = `${tile.y}px`;
    mark.current.style.width = `${tile.width}px`;
    mark.current.style.height = `${tile.height}px`;
  });

  if (small) {
    return (
      <div class="map small" ref={box}>
        <canvas ref={canvas} aria-hidden="true" />
      </div>
    );
  }

  const at = (event: MouseEvent) => {
    const bounds = box.current!.getBoundingClientRect();
    const place = tileAt(tiles, event.clientX - bounds.left, event.clientY - bounds.top);
    return place > 0 ? tiles[place]!.node.key : "";
  };
  const open = (key: string) => {
    const href = tiles[find(key)]?.node.href;
    if (href) location.hash = href;
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") return open(chosen);
    if (event.key === "Escape") return setChosen("");
    const next = moveBy(event.key, tiles, find(chosen));
    const tile = tiles[next];
    if (!tile) return;
    event.preventDefault();
    setPointed("");
    setChosen(tile.node.key);
    setSaid(spoken(pathTo(tiles, next)));
  };
  const path = shownAt >= 0 ? pathTo(tiles, shownAt) : [];
  const whole = tiles[0]?.node;
  return (
    <div class="map-and-details">
      <div
        class="map" ref={box} tabIndex={0} role="application" aria-label={`Map of ${name}`}
        aria-describedby="map-help" onKeyDown={onKey}
        onMouseMove={(event) => setPointed(at(event))}
        onMouseLeave={() => setPointed("")}
        onClick={(event) => setChosen(at(event))}
        onDblClick={(event) => open(at(event))}
      >
        <canvas ref={canvas} aria-hidden="true" />
        <div class="map-mark" ref={mark} hidden />
      </div>
      <p id="map-help" class="unseen">
        Left and right go to the neighbour, down goes into a tile, up goes out of it, Enter opens its
        page. The table below has the same figures.
      </p>
      <p class="unseen" role="status">{said}</p>
      <Details path={path} whole={whole?.bytes ?? 0} empty={
        whole ? `${formatBytes(whole.bytes)} in all. Point at a tile, tap it, or use the arrow keys.` : ""
      } />
    </div>
  );
}
