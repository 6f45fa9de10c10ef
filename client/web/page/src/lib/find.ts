// SPDX-License-Identifier: Apache-2.0
// The search: objects whose names, numbers or processes contain what was typed.
import { deviceTitle, formatBytes, shown } from "./format";
import { devicesInOrder, memoryOf } from "./model";
import { hrefs } from "./routes";
import type { Store } from "./store";

export interface Found {
  kind: string;
  title: string;
  more: string;
  href: string;
}

const EACH = 8; // of each kind
const ALL = 30;

/** Returns objects that match, whole matches first. A number also finds ids and pids. */
export function find(store: Store, typed: string): Found[] {
  const text = typed.trim().toLowerCase();
  if (!text) return [];
  const number = text.replace(/^(pid|session|segment|gpu|uid)\s+/, "");
  const found: { rank: number; order: number; object: Found }[] = [];
  let count = 0;
  let rank = 0;
  const begin = () => {
    count = 0;
  };
  const matches = (...names: (string | undefined)[]): boolean => {
    rank = 9;
    for (const name of names) {
      const lower = name?.toLowerCase();
      if (!lower) continue;
      if (lower === text) rank = Math.min(rank, 0);
      else if (lower.startsWith(text)) rank = Math.min(rank, 1);
      else if (lower.includes(text)) rank = Math.min(rank, 2);
    }
    return rank < 9;
  };
  const exactly = (...numbers: (number | undefined)[]): boolean => {
    if (!numbers.some((each) => each !== undefined && String(each) === number)) return false;
    rank = 0;
    return true;
  };
  const add = (object: Found) => {
    if (rank === 0 || count < EACH) found.push({ rank, order: found.length, object });
    ++count;
  };

  for (const each of devicesInOrder(store)) {
    if (matches(each.device_uuid, each.name, deviceTitle(each), each.pci_bus_id)) {
      add({ kind: "Device", title: deviceTitle(each), more: shown(each.name), href: hrefs.device(each.device_uuid) });
    }
  }
  begin();
  for (const [name, each] of store.tenants) {
    if (matches(name)) {
      add({ kind: "Tenant", title: shown(name), more: formatBytes(memoryOf(each)), href: hrefs.tenant(name) });
    }
  }
  begin();
  for (const each of store.publications.values()) {
    const name = `${each.tenant}/${each.name}`;
    if (matches(name, each.name, each.content_id)) {
      add({ kind: "Publication", title: shown(name), more: `v${each.version ?? 0}, ${formatBytes(each.bytes)}`,
            href: hrefs.publication(each.tenant, each.name) });
    }
  }
  begin();
  for (const each of store.sessions.values()) {
    if (exactly(each.session_id, each.pid) || matches(each.command, each.client_name)) {
      add({ kind: "Session", title: `${shown(each.client_name || each.command) || "process"} · pid ${each.pid ?? 0}`,
            more: `session ${each.session_id}, ${shown(each.tenant)}`, href: hrefs.session(each.session_id) });
    }
  }
  begin();
  if (/^\d+$/.test(number)) {
    const segment = store.segments.get(number);
    rank = 0;
    if (segment) {
      add({ kind: "Segment", title: `segment ${segment.segment_id}`,
            more: `${formatBytes(segment.size_bytes)}, ${shown(segment.tenant)}`, href: hrefs.segment(segment.segment_id) });
    }
  }
  return found.sort((a, b) => a.rank - b.rank || a.order - b.order).slice(0, ALL).map((each) => each.object);
}
