// SPDX-License-Identifier: Apache-2.0
// The state of the node as last told, and who wants to know of its changes.
import type {
  Change, Device, EventRecord, Lease, ListChange, Me, Publication, Published, Sees, Segment,
  Session, Snapshot, Status, Tenant, Waiting,
} from "./wire";

export type Link =
  | { state: "connecting" }
  | { state: "ok" }
  | { state: "login"; message: string }
  | { state: "daemon-lost"; sinceMs: number; message: string }
  | { state: "web-lost"; sinceMs: number; message: string };

export type Topic =
  | "status" | "devices" | "tenants" | "sessions" | "segments" | "leases" | "published"
  | "publications" | "waiting" | "events" | "link" | "me";

const LISTS = ["devices", "tenants", "sessions", "segments", "leases", "published",
               "publications"] as const;
export const MAX_EVENTS = 1000;

type Listener = (changed: ReadonlySet<Topic>) => void;

export const publicationKey = (tenant: string, name: string) => `${tenant}/${name}`;

const KEYS = {
  devices: (each: Device) => each.device_uuid,
  tenants: (each: Tenant) => each.usage.tenant,
  sessions: (each: Session) => String(each.session_id),
  segments: (each: Segment) => String(each.segment_id),
  leases: (each: Lease) => String(each.lease_id),
  published: (each: Published) => `${each.tenant}/${each.name}/${each.version}`,
  publications: (each: Publication) => publicationKey(each.tenant, each.name),
};

export class Store {
  loaded = false;
  sees: Sees = "all";
  timeMs = 0; // of the last message, by the node's clock
  number = 0;
  status: Status = {};
  readonly devices = new Map<string, Device>();
  readonly tenants = new Map<string, Tenant>();
  readonly sessions = new Map<string, Session>();
  readonly segments = new Map<string, Segment>();
  readonly leases = new Map<string, Lease>();
  readonly published = new Map<string, Published>();
  readonly publications = new Map<string, Publication>();
  waiting: Waiting[] = [];
  events: EventRecord[] = []; // the oldest first
  link: Link = { state: "connecting" };
  me: Me | null = null;

  private readonly versions = new Map<Topic, number>();
  private readonly listeners = new Set<Listener>();
  private readonly changeListeners = new Set<(change: Change | null) => void>();
  private dirty = new Set<Topic>();
  private scheduled = false;
  private skewMs = 0; // of the node's clock to this one

  /** Returns a number that grows with each change of the topic. */
  version(topic: Topic): number {
    return this.versions.get(topic) ?? 0;
  }

  /** Returns the node's time now; the time of the last message while it is lost. */
  nowMs(): number {
    return this.link.state === "ok" ? Date.now() + this.skewMs : this.timeMs;
  }

  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Calls back at once with each change, and with null for a new snapshot. */
  onChange(listener: (change: Change | null) => void): () => void {
    this.changeListeners.add(listener);
    return () => this.changeListeners.delete(listener);
  }

  applySnapshot(snapshot: Snapshot): void {
    this.loaded = true;
    this.sees = snapshot.viewer?.sees ?? "all";
    this.status = snapshot.status ?? {};
    for (const list of LISTS) {
      const map = this[list] as Map<string, unknown>;
      map.clear();
      this.put(map, snapshot[list] ?? [], KEYS[list] as (each: unknown) => string);
      this.touch(list);
    }
    this.waiting = snapshot.waiting ?? [];
    this.number = snapshot.number;
    this.moment(snapshot.time_ms);
    this.touch("status");
    this.touch("waiting");
    this.setLink({ state: "ok" });
    for (const listener of this.changeListeners) listener(null);
  }

  applyChange(change: Change): void {
    if (!this.loaded || change.number <= this.number) return;
    this.number = change.number;
    this.moment(change.time_ms);
    if (change.status) {
      this.status = change.status;
      this.touch("status");
    }
    for (const list of LISTS) {
      const changed = change[list] as ListChange<unknown> | undefined;
      if (!changed) continue;
      const map = this[list] as Map<string, unknown>;
      for (const key of changed.gone ?? []) map.delete(String(key));
      this.put(map, changed.set ?? [], KEYS[list] as (each: unknown) => string);
      this.touch(list);
    }
    if (change.waiting) {
      this.waiting = change.waiting;
      this.touch("waiting");
    }
    for (const listener of this.changeListeners) listener(change);
  }

  applyTick(timeMs: number): void {
    this.moment(timeMs);
  }

  addEvent(record: EventRecord): void {
    // A stream that begins anew repeats the past, also of a daemon before, whose numbers are others.
    if (this.events.some((each) => each.number === record.number && each.time_ms === record.time_ms)) return;
    this.events.push(record);
    if (this.events.length > MAX_EVENTS + 100) this.events = this.events.slice(-MAX_EVENTS);
    this.touch("events");
  }

  setLink(link: Link): void {
    if (link.state === "ok" && this.link.state === "ok") return;
    this.link = link;
    this.touch("link");
  }

  setMe(me: Me): void {
    this.me = me;
    this.touch("me");
  }

  private put(map: Map<string, unknown>, objects: unknown[], key: (each: unknown) => string): void {
    for (const each of objects) map.set(key(each), each);
  }

  private moment(timeMs: number): void {
    if (!Number.isFinite(timeMs)) return;
    this.timeMs = timeMs;
    this.skewMs = timeMs - Date.now();
  }

  private touch(topic: Topic): void {
    this.versions.set(topic, this.version(topic) + 1);
    this.dirty.add(topic);
    if (this.scheduled) return;
    this.scheduled = true;
    // One frame draws all messages that came before it.
    const flush = () => {
      this.scheduled = false;
      const changed = this.dirty;
      this.dirty = new Set();
      for (const listener of [...this.listeners]) listener(changed);
    };
    if (typeof requestAnimationFrame === "function") requestAnimationFrame(flush);
    else setTimeout(flush, 0);
  }
}
