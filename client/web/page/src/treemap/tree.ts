// SPDX-License-Identifier: Apache-2.0
// A device's memory as a tree: tenants, their sessions and other holders, their segments.
import { formatBytes, shown } from "../lib/format";
import {
  held, holdingsOn, isPale, isShared, parentOf, publicationsOfSegment, segmentsOn,
} from "../lib/model";
import { hrefs } from "../lib/routes";
import type { Store } from "../lib/store";
import type { Device, Segment, Session } from "../lib/wire";

export type NodeKind =
  | "device" | "tenant" | "session" | "publication" | "group" | "segment" | "free" | "outside"
  | "process";

export interface TreeNode {
  key: string; // unique in the tree, and the same in the next one
  kind: NodeKind;
  label: string;
  bytes: number;
  tenant: string; // "" outside of tenants
  href: string; // "" if there is no page for it
  pale: boolean;
  shared: boolean;
  note: string; // a sentence that explains it
  segment?: Segment;
  session?: Session;
  stamp: number; // of a tenant: another one if what it holds is drawn in another way; else 0
  children: TreeNode[];
}

const NONE: TreeNode[] = []; // of segments: they are many

function node(kind: NodeKind, key: string, label: string, bytes: number,
              more: Partial<TreeNode> = {}): TreeNode {
  return { kind, key, label, bytes, tenant: "", href: "", pale: false, shared: false, note: "",
           stamp: 0, children: [], ...more };
}

function segmentNode(segment: Segment, holder: TreeNode, bytes: number): TreeNode {
  return {
    kind: "segment", key: `${holder.key}/${segment.segment_id}`, label: `segment ${segment.segment_id}`,
    bytes, tenant: segment.tenant, href: hrefs.segment(segment.segment_id), pale: isPale(segment),
    shared: isShared(segment), note: "", segment, stamp: 0, children: NONE,
  };
}

const GROUPS: Record<string, { label: string; note: string }> = {
  retained: { label: "kept for reuse",
              note: "No session uses it. The tenant keeps it for its next request; it is given up first." },
  lingering: { label: "lingering",
               note: "Its lease has ended, but a process that may still map it lives. Charged until that ends." },
  pending: { label: "being made", note: "It is being created or handed over." },
  releasing: { label: "on its way back", note: "It is on its way back to the driver." },
  leased: { label: "in use", note: "Its holders are not listed." },
};

export function sessionLabel(session: Session | undefined, id: number): string {
  if (!session) return `session ${id}`;
  const name = shown(session.client_name || session.command);
  return session.pid ? `${name || "process"} · pid ${session.pid}` : name || `session ${id}`;
}

// Returns the session under which the segment is shown: the first one of its tenant, else the first.
function mainSession(store: Store, segment: Segment): number | undefined {
  const ids = segment.session_ids ?? [];
  if (ids.length < 2) return ids[0];
  return ids.find((id) => store.sessions.get(String(id))?.tenant === segment.tenant) ?? ids[0];
}

function holderOf(store: Store, segment: Segment, prefix: string): TreeNode {
  const published = (segment.publications ?? 0) > 0 ? publicationsOfSegment(store, segment.segment_id)[0]
                                                   : undefined;
  const tenant = segment.tenant;
  if (published) {
    const name = published.name;
    return node("publication", `${prefix}/p:${published.tenant}/${name}`, `publication ${shown(name)}`,
                0, { tenant, href: hrefs.publication(published.tenant, name),
                     note: "Published under a name: sessions attach to it, and it can outlive its publisher." });
  }
  const first = mainSession(store, segment);
  if (segment.state === "leased" && first !== undefined) {
    const session = store.sessions.get(String(first));
    return node("session", `${prefix}/s:${first}`, sessionLabel(session, first), 0,
                { tenant, href: session ? hrefs.session(first) : "", ...(session ? { session } : {}) });
  }
  const state = (segment.publications ?? 0) > 0 ? "leased" : segment.state ?? "leased";
  const group = GROUPS[state] ?? { label: state, note: "" };
  return node("group", `${prefix}/g:${state}`, group.label, 0,
              { tenant, note: group.note, pale: state !== "leased" });
}

// What a tenant's own segments make of the tree. Kept until one of the objects in it changes, so that
// the change of a few segments among thousands costs little.
interface Held {
  segments: Segment[];
  sessions: (Session | undefined)[];
  published: number; // version of the list
  holders: TreeNode[];
  sum: number;
  stamp: number;
}

const kept = new Map<string, Map<string, Held>>(); // by device and tenant
let stamps = 0;

function sessionOf(store: Store, segment: Segment): Session | undefined {
  const id = mainSession(store, segment);
  return id === undefined ? undefined : store.sessions.get(String(id));
}

function isSame(store: Store, before: Held, segments: Segment[]): boolean {
  if (before.segments.length !== segments.length) return false;
  if (before.published !== store.version("published")) return false;
  for (let i = 0; i < segments.length; ++i) {
    if (before.segments[i] !== segments[i]) return false;
    if (before.sessions[i] !== sessionOf(store, segments[i]!)) return false;
  }
  return true;
}

function heldBy(store: Store, key: string, segments: Segment[]): Held {
  const holders = new Map<string, TreeNode>();
  let sum = 0;
  for (const segment of segments) {
    const bytes = segment.size_bytes ?? 0;
    if (bytes === 0) continue;
    sum += bytes;
    const made = holderOf(store, segment, key);
    let holder = holders.get(made.key);
    if (!holder) {
      holder = made;
      holders.set(made.key, holder);
    }
    holder.bytes += bytes;
    holder.children.push(segmentNode(segment, holder, bytes));
  }
  for (const holder of holders.values()) {
    holder.pale ||= holder.children.every((each) => each.pale);
    holder.shared = holder.children.some((each) => each.shared);
    inOrder(holder.children);
  }
  return {
    segments, sum, sessions: segments.map((each) => sessionOf(store, each)), stamp: ++stamps,
    published: store.version("published"), holders: inOrder([...holders.values()]),
  };
}

function inOrder(nodes: TreeNode[]): TreeNode[] {
  return nodes.length < 2 ? nodes : nodes.sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1));
}

// Sorts what stands above the holders, whose segments are in order.
function sorted(tree: TreeNode): TreeNode {
  inOrder(tree.children);
  for (const child of tree.children) if (child.kind === "tenant" || child.kind === "outside") sorted(child);
  return tree;
}

function outsideNode(store: Store, uuid: string, bytes: number): TreeNode {
  const outside = node("outside", "outside", "not from gpumem", bytes, {
    note: "In use on the device, but not handed out by gpumem: plain cudaMalloc, CUDA contexts, the driver.",
  });
  let left = bytes;
  for (const each of store.status.foreign_processes ?? []) {
    const part = Math.min(left, each.bytes ?? 0);
    if (each.device_uuid !== uuid || part === 0) continue;
    left -= part;
    const label = each.pid ? `${shown(each.command) || "process"} · pid ${each.pid}` : "a process of another container";
    outside.children.push(node("process", `outside/f:${each.pid ?? 0}:${outside.children.length}`, label, part,
                               { note: "This process uses the device without a session of gpumem." }));
  }
  for (const session of store.sessions.values()) {
    const part = Math.min(left, session.unbrokered_bytes ?? 0);
    if (part === 0 || !onlyOnDevice(store, session, uuid)) continue;
    left -= part;
    outside.children.push(node("process", `outside/u:${session.session_id}`,
                               sessionLabel(session, session.session_id), part,
                               { tenant: session.tenant, href: hrefs.session(session.session_id),
                                 note: "This process of a tenant allocated it past gpumem." }));
  }
  if (outside.children.length > 0 && left > 0) {
    outside.children.push(node("process", "outside/rest", "contexts and driver", left,
                               { note: "CUDA contexts, the driver, and processes that it does not name." }));
  }
  return outside;
}

// A session's figure is over all devices; it is this device's if its tenant has it nowhere else.
function onlyOnDevice(store: Store, session: Session, uuid: string): boolean {
  const usages = store.tenants.get(session.tenant)?.usage.devices ?? [];
  return usages.every((each) => (each.device_uuid === uuid) === ((each.unbrokered_bytes ?? 0) > 0));
}

/** Returns the device's whole memory: that of tenants, that outside of gpumem, and the free rest. */
export function deviceTree(store: Store, device: Device): TreeNode {
  const holdings = holdingsOn(store, device);
  const own = new Map(holdings.tenants.map((each) => [each.tenant, held(each)]));
  const byTenant = new Map<string, Segment[]>();
  for (const segment of segmentsOn(store, device.device_uuid)) {
    const list = byTenant.get(segment.tenant);
    if (list) list.push(segment);
    else byTenant.set(segment.tenant, [segment]);
  }
  const nodes = new Map<string, TreeNode>();
  const before = kept.get(device.device_uuid);
  const now = new Map<string, Held>();
  kept.set(device.device_uuid, now);
  for (const name of new Set([...own.keys(), ...byTenant.keys()])) {
    const tenantNode = node("tenant", `t:${name}`, shown(name), 0,
                            { tenant: name, href: store.tenants.has(name) ? hrefs.tenant(name) : "" });
    const segments = byTenant.get(name) ?? [];
    const last = before?.get(name);
    const what = last && isSame(store, last, segments) ? last : heldBy(store, tenantNode.key, segments);
    now.set(name, what);
    const sum = what.sum;
    tenantNode.stamp = what.stamp;
    tenantNode.children = [...what.holders];
    const rest = Math.max(0, (own.get(name) ?? 0) - sum);
    if (rest > 0) {
      tenantNode.children.push(node("group", `t:${name}/rest`, "not listed", rest,
                                    { tenant: name, note: "Charged, but its segments are not shown to you." }));
    }
    tenantNode.bytes = sum + rest;
    nodes.set(name, tenantNode);
  }
  const root = node("device", "device", shown(device.name), device.capacity_bytes ?? 0);
  nest(store, nodes, root);
  if (holdings.outside > 0) root.children.push(outsideNode(store, device.device_uuid, holdings.outside));
  if (holdings.free > 0) {
    root.children.push(node("free", "free", "free", holdings.free,
                            { note: "Nothing uses it. Part of it may be guaranteed to tenants." }));
  }
  return sorted(root);
}

// Puts tenants under their parents, and those without into the root. Adds parents that have no memory
// but that of tenants under them.
function nest(store: Store, nodes: Map<string, TreeNode>, root: TreeNode): void {
  const inRoot = new Set<TreeNode>();
  for (const tenantNode of [...nodes.values()]) {
    let child = tenantNode;
    for (let depth = 0; depth < 16; ++depth) {
      const tenant = store.tenants.get(child.tenant);
      const name = tenant ? parentOf(tenant) : "";
      if (!name || !store.tenants.has(name)) {
        if (!inRoot.has(child)) root.children.push(child);
        inRoot.add(child);
        break;
      }
      let parent = nodes.get(name);
      const isNew = !parent;
      if (!parent) {
        parent = node("tenant", `t:${name}`, shown(name), 0, { tenant: name, href: hrefs.tenant(name) });
        nodes.set(name, parent);
      }
      if (!parent.children.includes(child)) parent.children.push(child);
      if (!isNew) {
        break;
      }
      child = parent;
    }
  }
  const sum = (each: TreeNode): number => {
    const tenants = each.children.filter((child) => child.kind === "tenant");
    for (const child of tenants) each.bytes += sum(child);
    return each.bytes;
  };
  for (const each of root.children) sum(each);
}

/** Returns the node's path of labels, for people who hear it: "segment 7, worker, training". */
export function spoken(path: TreeNode[]): string {
  const last = path[path.length - 1];
  if (!last) return "";
  const around = path.slice(1, -1).reverse().map((each) => each.label);
  const state = [last.shared ? "shared" : "", last.segment && last.pale ? stateOf(last.segment) : ""];
  return [`${last.label}, ${formatBytes(last.bytes)}`, ...state, ...around].filter(Boolean).join(", ");
}

export function stateOf(segment: Segment): string {
  if (segment.kind === "tier") return "suspended";
  if (segment.state === "leased" && isPale(segment)) return "suspended";
  return segment.state ?? "unknown";
}
