// SPDX-License-Identifier: Apache-2.0
// What follows from the state: who holds how much, and which objects belong to which.
import { isHostMemory } from "./format";
import type { Store, Topic } from "./store";
import type { Device, DeviceUsage, Lease, Published, Segment, Session, Tenant } from "./wire";

/** Returns a function that computes anew only after one of the topics has changed. */
function remembered<T>(topics: Topic[], compute: (store: Store) => T): (store: Store) => T {
  let last: { store: Store; versions: string; value: T } | null = null;
  return (store) => {
    const versions = topics.map((topic) => store.version(topic)).join();
    if (!last || last.store !== store || last.versions !== versions) {
      last = { store, versions, value: compute(store) };
    }
    return last.value;
  };
}

function grouped<T, K>(all: Iterable<T>, keys: (each: T) => Iterable<K>): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const each of all) {
    for (const key of keys(each)) {
      const group = groups.get(key);
      if (group) group.push(each);
      else groups.set(key, [each]);
    }
  }
  return groups;
}

const segmentsByDevice = remembered(["segments"], (store) =>
  grouped<Segment, string>(store.segments.values(), (each) => [each.device_uuid]));
const segmentsByTenant = remembered(["segments"], (store) =>
  grouped<Segment, string>(store.segments.values(), (each) => [each.tenant]));
const sessionsByTenant = remembered(["sessions"], (store) =>
  grouped<Session, string>(store.sessions.values(), (each) => [each.tenant]));
const leasesBySegment = remembered(["leases"], (store) =>
  grouped<Lease, number>(store.leases.values(), (each) => [each.segment_id]));
const leasesBySession = remembered(["leases"], (store) =>
  grouped<Lease, number>(store.leases.values(), (each) => [each.session_id ?? 0]));
const leasesByPublication = remembered(["leases"], (store) =>
  grouped<Lease, string>(store.leases.values(), (each) => (each.publication ? [each.publication] : [])));
const publishedBySegment = remembered(["published"], (store) =>
  grouped<Published, number>(store.published.values(), (each) => each.segment_ids ?? []));
const tenantsByParent = remembered(["tenants"], (store) =>
  grouped<Tenant, string>(store.tenants.values(), (each) => (parentOf(each) ? [parentOf(each)] : [])));

export const segmentsOn = (store: Store, uuid: string) => segmentsByDevice(store).get(uuid) ?? [];
export const segmentsOfTenant = (store: Store, name: string) => segmentsByTenant(store).get(name) ?? [];
export const sessionsOfTenant = (store: Store, name: string) => sessionsByTenant(store).get(name) ?? [];
export const leasesOfSegment = (store: Store, id: number) => leasesBySegment(store).get(id) ?? [];
export const leasesOfSession = (store: Store, id: number) => leasesBySession(store).get(id) ?? [];
export const leasesOfPublication = (store: Store, key: string) => leasesByPublication(store).get(key) ?? [];
export const publicationsOfSegment = (store: Store, id: number) => publishedBySegment(store).get(id) ?? [];
export const tenantsUnder = (store: Store, name: string) => tenantsByParent(store).get(name) ?? [];

/** Returns the tenant's parent, which may be hidden or not there, or "". */
export function parentOf(tenant: Tenant): string {
  return tenant.quota?.parent ?? tenant.made?.parent ?? "";
}

/** True for the sum of tenants that the viewer may not see. No tenant can have this name. */
export const isOthers = (name: string) => name === "(others)";

/** Returns the tenant's memory on all devices but host memory. */
export function memoryOf({ usage }: Tenant): number {
  if (!isOthers(usage.tenant)) return usage.charged_bytes ?? 0;
  let sum = 0; // it comes by device alone
  for (const each of usage.devices ?? []) {
    if (!isHostMemory(each.device_uuid)) sum += each.charged_bytes ?? 0;
  }
  return sum;
}

/** Returns the tenants above and the tenant itself, the topmost first. */
export function pathOf(store: Store, name: string): string[] {
  const path = [name];
  for (let at = store.tenants.get(name); at; ) {
    const parent = parentOf(at);
    if (!parent || path.includes(parent)) break;
    path.unshift(parent);
    at = store.tenants.get(parent);
  }
  return path;
}

export interface Holding {
  tenant: string;
  leased: number;
  retained: number;
  lingering: number;
  moving: number; // being created or given back
}

export const held = (each: Holding) => each.leased + each.retained + each.lingering + each.moving;

export interface DeviceHoldings {
  tenants: Holding[]; // without those under them; the largest first
  all: Holding;
  outside: number; // in use, but not by the daemon's segments
  free: number;
}

const less = (from: number, what: number) => Math.max(0, from - what);

export function usageOn(tenant: Tenant | undefined, uuid: string): DeviceUsage | undefined {
  return tenant?.usage.devices?.find((each) => each.device_uuid === uuid);
}

function total(tenant: Tenant, uuid: string): Holding {
  const usage = usageOn(tenant, uuid);
  const holding = {
    tenant: tenant.usage.tenant,
    leased: usage?.leased_bytes ?? 0,
    retained: usage?.retained_bytes ?? 0,
    lingering: usage?.lingering_bytes ?? 0,
    moving: 0,
  };
  holding.moving = less(usage?.charged_bytes ?? 0, held(holding));
  return holding;
}

/** Returns the same numbers as `gpumemctl map` (HoldingsOn in client/cli/views/holdings.cc). */
export function holdingsOn(store: Store, device: Device): DeviceHoldings {
  const uuid = device.device_uuid;
  const own = new Map<string, Holding>();
  const totals = new Map<string, Holding>();
  for (const [name, tenant] of store.tenants) {
    const all = total(tenant, uuid);
    totals.set(name, all);
    own.set(name, { ...all });
  }
  for (const [name, tenant] of store.tenants) {
    const above = own.get(parentOf(tenant));
    const under = totals.get(name);
    if (!above || !under) continue;
    above.leased = less(above.leased, under.leased);
    above.retained = less(above.retained, under.retained);
    above.lingering = less(above.lingering, under.lingering);
    above.moving = less(above.moving, under.moving);
  }
  const all: Holding = { tenant: "", leased: 0, retained: 0, lingering: 0, moving: 0 };
  const tenants: Holding[] = [];
  for (const each of own.values()) {
    if (held(each) === 0) continue;
    all.leased += each.leased;
    all.retained += each.retained;
    all.lingering += each.lingering;
    all.moving += each.moving;
    tenants.push(each);
  }
  tenants.sort((a, b) => held(b) - held(a) || (a.tenant < b.tenant ? -1 : 1));
  const room = less(device.capacity_bytes ?? 0, held(all));
  const driverFree = device.driver_free_bytes ?? 0;
  const outside = driverFree > 0 ? less(room, driverFree) : 0;
  return { tenants, all, outside, free: less(room, outside) };
}

/** Returns the devices in the order of gpumemctl, host memory last. */
export function devicesInOrder(store: Store): Device[] {
  return [...store.devices.values()].sort(
    (a, b) =>
      Number(isHostMemory(a.device_uuid)) - Number(isHostMemory(b.device_uuid)) ||
      (a.index ?? 0) - (b.index ?? 0));
}

/** True if the segment is suspended, or no session may use it now. */
export function isPale(segment: Segment): boolean {
  if (segment.state !== "leased" || segment.kind === "tier") return true;
  const leases = segment.leases ?? 0;
  return leases > 0 && (segment.suspended ?? 0) >= leases;
}

/** True if several sessions use it, or one uses it through a publication. */
export function isShared(segment: Segment): boolean {
  const sessions = segment.session_ids?.length ?? 0;
  return sessions > 1 || ((segment.publications ?? 0) > 0 && sessions > 0);
}

// Places of tenants in the palette, for as long as the page is open.
const places = new Map<string, number>();
const MOST_PLACES = 8192;
let nextPlace = 0;

/** Returns the tenant's place in the palette; -1 for the sum of those that the viewer may not see. The
    tenants with most memory come first. */
export function placeOf(store: Store, tenant: string): number {
  if (isOthers(tenant)) return -1;
  if (places.size === 0) {
    const order = [...store.tenants.values()].sort(
      (a, b) => (b.usage.charged_bytes ?? 0) - (a.usage.charged_bytes ?? 0));
    for (const each of order) places.set(each.usage.tenant, nextPlace++);
  }
  let place = places.get(tenant);
  if (place === undefined) {
    if (places.size >= MOST_PLACES) {
      for (const name of places.keys()) if (!store.tenants.has(name)) places.delete(name);
    }
    place = nextPlace++;
    places.set(tenant, place);
  }
  return place;
}
