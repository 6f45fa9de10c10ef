// SPDX-License-Identifier: Apache-2.0
// States of nodes for the fake gpumem-web: a small one with all kinds of objects, one with hostile
// names, and a big one.

export const GIB = 1024 ** 3;
export const MIB = 1024 ** 2;
export const GPU = "GPU-8f2b1a30-6f5c-4be1-9d0e-2c1a7b9e4d11";
export const GPU1 = "GPU-d41c77e2-0b3a-4f6e-8e55-7a90c3f21b02";
export const TIER = "TIER-memory";
export const PINNED = "PINNED-memory";
const KIB = 1024;

export class Builder {
  constructor(now = Date.now()) {
    this.now = now;
    this.state = {
      schema_version: 1, number: 1, time_ms: now, viewer: { sees: "all" },
      status: { version: "0.5.0", pid: 901, backend: "cuda", started_ms: now - 86400000 * 3, keeps_memory: true, generation: 2 },
      devices: [], tenants: [], sessions: [], segments: [], leases: [], published: [], publications: [], waiting: [],
    };
    this.segmentId = 100;
    this.leaseId = 1000;
    this.outside = new Map();
  }

  device(uuid, index, name, capacity, more = {}) {
    this.state.devices.push({ device_uuid: uuid, name, backend: "cuda", capacity_bytes: capacity, index,
                              granularity_bytes: 2 * MIB, kinds: ["vmm", "mempool", "ipc"], ...more });
  }

  tenant(name, { parent, limit, guarantee, made, priority } = {}) {
    const quota = {};
    if (parent) quota.parent = parent;
    if (limit) quota.limit_bytes = limit;
    if (guarantee) quota.guarantee_bytes = guarantee;
    if (priority) quota.priority = priority;
    this.state.tenants.push({ usage: { tenant: name, devices: [] }, quota, configured: !made,
                              ...(made ? { made } : {}) });
  }

  session(id, tenant, pid, command, more = {}) {
    this.state.sessions.push({ session_id: id, tenant, state: "live", pid, uid: 1000 + (id % 7), gid: 1000,
                               client_name: "", command, cgroup: `/system.slice/${tenant}.service`,
                               rule: `unit = "${tenant}.service"`, since_ms: this.now - 1000 * (60 + id * 37),
                               idle_since_ms: this.now - 1000 * (id % 90), ...more });
  }

  segment(tenant, device, bytes, sessions, more = {}) {
    const id = this.segmentId++;
    const { lease = {}, ...rest } = more;
    this.state.segments.push({ segment_id: id, tenant, device_uuid: device, kind: "vmm", size_bytes: bytes,
                               state: sessions.length || rest.publications ? "leased" : "retained",
                               ...(sessions.length ? { session_ids: sessions, leases: sessions.length } : {}),
                               since_ms: this.now - 1000 * (30 + (id % 500)), ...rest });
    if (rest.state !== "lingering") {
      for (const session of sessions) {
        this.state.leases.push({ lease_id: this.leaseId++, segment_id: id, session_id: session,
                                 tenant: this.state.sessions.find((each) => each.session_id === session)?.tenant ?? tenant,
                                 ...lease });
      }
    }
    return id;
  }

  publish(tenant, name, version, ids, more = {}) {
    const segments = ids.map((id) => this.state.segments.find((each) => each.segment_id === id));
    for (const each of segments) each.publications = (each.publications ?? 0) + 1;
    this.state.published.push({ tenant, name, version, segment_ids: ids });
    const attached = new Set(segments.flatMap((each) => each.session_ids ?? []));
    const key = `${tenant}/${name}`;
    this.state.publications = this.state.publications.filter((each) => `${each.tenant}/${each.name}` !== key);
    this.state.publications.push({ tenant, name, version, segments: ids.length,
                                   bytes: segments.reduce((sum, each) => sum + each.size_bytes, 0),
                                   metadata_bytes: 5310, access: "tenant", attached_sessions: attached.size,
                                   since_ms: this.now - 3600000 * version, ...more });
    for (const lease of this.state.leases) {
      if (!ids.includes(lease.segment_id)) continue;
      Object.assign(lease, { attached: true, publication: key, version });
    }
  }

  waiting(session, tenant, device, bytes, position, seconds, blocked_by, more = {}) {
    this.state.waiting.push({ session_id: session, tenant, device_uuid: device, kind: "vmm", bytes, count: 1, position,
                              since_ms: this.now - 1000 * seconds, blocked_by, ...more });
  }

  /** Adds up usage as the daemon does: that of tenants contains those under them. */
  done() {
    const { tenants, segments, sessions, waiting, publications, devices } = this.state;
    const byName = new Map(tenants.map((each) => [each.usage.tenant, each]));
    const chain = (name) => {
      const all = [];
      for (let at = byName.get(name); at && !all.includes(at); at = byName.get(at.quota.parent)) all.push(at);
      return all;
    };
    const usageOn = (tenant, uuid) => {
      let usage = tenant.usage.devices.find((each) => each.device_uuid === uuid);
      if (!usage) {
        const capacity = devices.find((each) => each.device_uuid === uuid)?.capacity_bytes ?? 0;
        usage = { device_uuid: uuid, limit_bytes: tenant.quota.limit_bytes ?? capacity,
                  ...(tenant.quota.guarantee_bytes ? { guarantee_bytes: tenant.quota.guarantee_bytes } : {}) };
        tenant.usage.devices.push(usage);
      }
      return usage;
    };
    const add = (object, field, value) => {
      object[field] = (object[field] ?? 0) + value;
    };
    for (const segment of segments) {
      for (const tenant of chain(segment.tenant)) {
        const usage = usageOn(tenant, segment.device_uuid);
        if (["leased", "retained", "lingering"].includes(segment.state)) add(usage, `${segment.state}_bytes`, segment.size_bytes);
        add(usage, "charged_bytes", segment.size_bytes);
        if (!segment.device_uuid.startsWith("TIER-")) add(tenant.usage, "charged_bytes", segment.size_bytes);
        usage.peak_bytes = Math.max(usage.peak_bytes ?? 0, usage.charged_bytes);
        add(tenant.usage, "segments", 1);
      }
      for (const id of segment.session_ids ?? []) {
        const session = sessions.find((each) => each.session_id === id);
        if (!session) continue;
        add(session, "leased_bytes", segment.size_bytes);
        add(session, "leases", 1);
        if (segment.kind === "tier") add(session, "suspended_bytes", segment.size_bytes);
      }
    }
    for (const session of sessions) for (const tenant of chain(session.tenant)) add(tenant.usage, "sessions", 1);
    for (const each of publications) for (const tenant of chain(each.tenant)) add(tenant.usage, "publications", 1);
    for (const each of waiting) {
      for (const tenant of chain(each.tenant)) {
        add(tenant.usage, "waiting", 1);
        add(usageOn(tenant, each.device_uuid), "waiting_bytes", each.bytes * each.count);
      }
    }
    for (const device of devices) {
      const charged = segments.filter((each) => each.device_uuid === device.device_uuid)
        .reduce((sum, each) => sum + each.size_bytes, 0);
      device.charged_bytes = charged;
      const outside = this.outside.get(device.device_uuid);
      if (outside !== undefined) device.driver_free_bytes = device.capacity_bytes - charged - outside;
    }
    return this.state;
  }
}

/** A node with an object of each kind. */
export function demo(now = Date.now()) {
  const b = new Builder(now);
  b.device(GPU, 0, "NVIDIA H100 80GB HBM3", 79 * GIB + 648 * MIB, { pci_bus_id: "00000000:1B:00.0", context_pid: 950 });
  b.device(GPU1, 1, "NVIDIA H100 80GB HBM3", 79 * GIB + 648 * MIB, { pci_bus_id: "00000000:43:00.0" });
  b.device(TIER, 2, "host tier", 256 * GIB);
  b.tenant("serving", { limit: 48 * GIB, guarantee: 32 * GIB, priority: 10 });
  b.tenant("research", { limit: 64 * GIB, guarantee: 16 * GIB });
  b.tenant("alice", { parent: "research", limit: 40 * GIB });
  b.tenant("bob", { parent: "research", limit: 24 * GIB });
  b.tenant("batch-7731", { made: { owner: "slurm", uid: 0, created_ms: now - 5400000 } });
  b.tenant("user-1007", { limit: 8 * GIB });
  b.session(11, "serving", 4211, "vllm", { client_name: "llm-server", uid: 990 });
  b.session(12, "serving", 4212, "vllm", { client_name: "llm-worker-0", uid: 990 });
  b.session(13, "serving", 4213, "vllm", { client_name: "llm-worker-1", uid: 990 });
  b.session(21, "alice", 5120, "python3", { client_name: "train.py", serves_suspension: true, swappable: true });
  b.session(22, "bob", 5344, "python3", { client_name: "rollout.py" });
  b.session(31, "batch-7731", 6001, "etl");
  b.session(32, "batch-7731", 6002, "etl", { state: "lingering" });
  b.session(41, "user-1007", 7010, "jupyter-lab", { unbrokered_bytes: 700 * MIB });
  const weights = [];
  for (let i = 0; i < 12; ++i) {
    weights.push(b.segment("serving", GPU, 1280 * MIB, i < 8 ? [12, 13] : [12], { publications: 0, state: "leased" }));
  }
  b.publish("serving", "llama-weights", 3, weights, { publisher_session_id: 11, publisher_pid: 4211, publisher_client_name: "llm-server", publisher_alive: true });
  for (const [session, sizes] of [[12, [6144, 2048, 1024, 512]], [13, [4096, 2048, 512]]]) {
    for (const size of sizes) b.segment("serving", GPU, size * MIB, [session]);
  }
  b.segment("serving", GPU, 1024 * MIB, []);
  for (const size of [8192, 4096, 2048, 1024, 512, 256]) b.segment("alice", GPU, size * MIB, [21], { lease: { tag: "activations" } });
  b.segment("alice", GPU, 2048 * MIB, [21, 22], { lease: { shared: true } });
  b.segment("alice", GPU, 768 * MIB, []);
  for (const size of [5120, 1024, 512]) b.segment("bob", GPU, size * MIB, [22], { revocable: true });
  const features = [2048, 1024].map((size) => b.segment("batch-7731", GPU, size * MIB, [], { publications: 0, state: "leased" }));
  b.publish("batch-7731", "features", 1, features, { access: "any", expire_after_ms: 1800000, expires_at_ms: now + 900000 });
  b.segment("batch-7731", GPU, 1536 * MIB, [32], { state: "lingering" });
  b.segment("batch-7731", GPU, 512 * MIB, [31]);
  b.segment("batch-7731", GPU, 256 * MIB, [31], { state: "pending" });
  b.segment("user-1007", GPU, 1024 * MIB, [41]);
  b.segment("research", GPU1, 2 * GIB, []);
  for (const size of [24, 8, 4]) b.segment("bob", GPU1, size * GIB, [22]);
  for (const size of [16, 4, 2]) b.segment("serving", GPU1, size * GIB, [13]);
  for (const size of [12, 6]) {
    b.segment("alice", TIER, size * GIB, [21], { kind: "tier", home_uuid: GPU, suspended: 1, lease: { suspended: true } });
  }
  b.outside.set(GPU, 3 * GIB + 220 * MIB);
  b.outside.set(GPU1, 620 * MIB);
  b.state.status.foreign_processes = [{ device_uuid: GPU, pid: 8123, command: "blender", bytes: 1900 * MIB }];
  b.state.status.notices = ["The driver's persistence mode is off: the driver may reset the device when nothing uses it."];
  b.waiting(31, "batch-7731", GPU, 24 * GIB, 1, 190, {
    cause: "capacity", tenant: "batch-7731", device_uuid: GPU, asked: 24 * GIB, used: 62 * GIB, limit: 79 * GIB,
    help: "wait until 9.50 GiB are released (gpumemctl segments shows the holders), or use another device",
    holders: [{ tenant: "serving", used: 32 * GIB }, { tenant: "alice", used: 18 * GIB }] });
  b.waiting(41, "user-1007", GPU, 2 * GIB, 2, 42, {
    cause: "queue", tenant: "user-1007", device_uuid: GPU, asked: 2 * GIB, queued_at: "capacity",
    help: "wait, too (AcquireOptions::wait; gpumemctl hold --wait), or use another device" });
  b.waiting(22, "bob", GPU1, 512 * MIB, 1, 7, {
    cause: "device_limit", tenant: "bob", device_uuid: GPU1, asked: 4 * 512 * MIB, used: 36 * GIB, limit: 24 * GIB,
    help: "release 14.00 GiB, or ask an operator for a higher limit (gpumemctl quota set)" }, { count: 4 });
  return b.done();
}

export const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "\"><script>window.pwned=1</script>",
  "javascript:alert(1)",
  "{{constructor.constructor('alert(1)')()}}",
  "\u202egnp.exe\u0007\u001b[31m",
  "__proto__",
  "constructor",
  "a/../../b?x=1#y&z=%3Cb%3E",
  "' onmouseover='alert(1)",
  "</textarea></title></style><svg onload=alert(1)>",
  "x".repeat(5000),
  "\u0000\ud83d\ude00\ud800",
];

/** The same kinds of objects, with names that try to become markup, scripts, paths and properties. */
export function hostile(now = Date.now()) {
  const b = new Builder(now);
  b.device(GPU, 0, HOSTILE[0], 80 * GIB);
  b.outside.set(GPU, 4 * GIB);
  HOSTILE.forEach((name, i) => {
    b.tenant(name, i === 3 ? { parent: HOSTILE[2] } : {});
    b.session(i + 1, name, 100 + i, name, { client_name: name, cgroup: name, rule: name });
    b.segment(name, GPU, (1 + (i % 3)) * GIB, [i + 1], { lease: { tag: name } });
    const published = b.segment(name, GPU, GIB, [i + 1]);
    b.publish(name, name, 1, [published], { publisher_client_name: name, publisher_session_id: i + 1, content_id: name });
    b.waiting(i + 1, name, GPU, GIB, i + 1, 5, { cause: i % 2 ? "device_limit" : "capacity", limited_tenant: name, limit: GIB,
                                                help: name, holders: [{ tenant: name, used: GIB }] });
  });
  b.state.status.notices = HOSTILE;
  b.state.status.version = HOSTILE[0];
  b.state.status.foreign_processes = [{ device_uuid: GPU, pid: 9, command: HOSTILE[1], bytes: GIB }];
  return b.done();
}

/** 10,000 segments of 1,000 tenants on one device, by default. */
export function big(now = Date.now(), tenants = 1000, segments = 10000) {
  const b = new Builder(now);
  b.device(GPU, 0, "NVIDIA H200", 141 * GIB);
  b.outside.set(GPU, GIB);
  for (let t = 0; t < tenants; ++t) {
    b.tenant(`user-${1000 + t}`);
    b.session(t + 1, `user-${1000 + t}`, 10000 + t, "python3");
  }
  // Sizes of which a few are large: as with real programs.
  for (let s = 0; s < segments; ++s) {
    const size = 2 * MIB * (1 + ((s * 7919) % 11 === 0 ? (s * 31) % 60 : (s * 17) % 4));
    const tenant = Math.floor(((s * 2654435761) % 4294967296) / 4294967296 * tenants);
    const state = s % 29 === 0 ? [] : s % 13 === 0 ? [tenant + 1, ((tenant + 1) % tenants) + 1] : [tenant + 1];
    b.segment(`user-${1000 + tenant}`, GPU, size, state);
  }
  return b.done();
}

/** What a viewer who may see only one tenant gets. */
export function own(now = Date.now()) {
  const all = demo(now);
  const mine = (each) => each.tenant === "user-1007";
  const others = { usage: { tenant: "(others)", devices: [] } };
  for (const device of all.devices) {
    const usage = { device_uuid: device.device_uuid };
    for (const tenant of all.tenants) {
      if (tenant.usage.tenant === "user-1007" || tenant.quota.parent) continue;
      const part = tenant.usage.devices.find((each) => each.device_uuid === device.device_uuid) ?? {};
      for (const field of ["leased_bytes", "retained_bytes", "lingering_bytes", "charged_bytes"]) {
        if (part[field]) usage[field] = (usage[field] ?? 0) + part[field];
      }
    }
    if (usage.charged_bytes) others.usage.devices.push(usage);
  }
  return {
    ...all, viewer: { sees: "own" },
    status: { version: all.status.version, backend: "cuda" },
    tenants: [...all.tenants.filter((each) => each.usage.tenant === "user-1007"), others],
    sessions: all.sessions.filter(mine), segments: all.segments.filter(mine), leases: all.leases.filter(mine),
    published: [], publications: [],
    waiting: all.waiting.map((each) => (mine(each) ? each : { tenant: "(others)", device_uuid: each.device_uuid, position: each.position })),
  };
}

/** Devices that are all free, host memory among them. */
export function idle(now = Date.now()) {
  const b = new Builder(now);
  b.device(GPU, 0, "NVIDIA H100 80GB HBM3", 80 * GIB);
  b.device(PINNED, 1, "", 16 * GIB);
  b.tenant("serving");
  return b.done();
}

/** A last hour that ends at the state. It has no sum of those that the viewer may not see. */
export function historyOf(state, now = Date.now()) {
  const series = [];
  state.tenants.forEach((tenant, t) => {
    if (tenant.usage.tenant === "(others)") return;
    for (const usage of tenant.usage.devices) {
      const points = [];
      const steps = 24;
      for (let i = 0; i <= steps; ++i) {
        const time = now - 3600000 + Math.round((i * 3560000) / steps);
        const wave = 0.66 + 0.34 * Math.cos((i - steps) / (2.6 + t * 0.5));
        const charged = Math.round(((usage.charged_bytes ?? 0) * wave) / (2 * MIB)) * 2 * MIB;
        const leased = Math.round((charged * 0.86) / (2 * MIB)) * 2 * MIB;
        points.push([time, i === steps ? usage.charged_bytes ?? 0 : charged, usage.limit_bytes ?? 0, usage.guarantee_bytes ?? 0,
                     i > steps - 3 ? usage.waiting_bytes ?? 0 : 0, i === steps ? usage.leased_bytes ?? 0 : leased]);
      }
      series.push({ tenant: tenant.usage.tenant, device_uuid: usage.device_uuid, points });
    }
  });
  return { interval_ms: 10000, since_ms: now - 3600000, now_ms: now, series };
}

export function eventsOf(state, now = Date.now()) {
  const records = [];
  const texts = {
    "session-opened": (who) => `session opened by ${who}`,
    granted: (who) => `granted to ${who}: 1.00 GiB in 1 segment`,
    released: (who) => `released by ${who}: 1.00 GiB in 1 segment`,
    denied: (who) => `denied to ${who}: asked for 24.00 GiB; 63.25 GiB of the device's 79.63 GiB are in use`,
    published: (who) => `published by ${who}: 15.00 GiB in 12 segments`,
    suspended: (who) => `suspended by ${who}: 18.00 GiB in 2 segments`,
  };
  const kinds = ["session-opened", "published", "granted", "granted", "denied", "released", "suspended"];
  state.sessions.slice(0, 60).forEach((session, i) => {
    const event = kinds[i % kinds.length];
    const who = `tenant ${session.tenant}, session ${session.session_id}, pid ${session.pid} (${session.client_name || session.command})`;
    records.push({ number: i + 1, time_ms: now - 1000 * (400 - i * 6), event, tenant: session.tenant, text: texts[event](who),
                   fields: { tenant: session.tenant, session: session.session_id, pid: session.pid, segment: [100 + i], bytes: GIB } });
  });
  return records;
}

export { KIB };
