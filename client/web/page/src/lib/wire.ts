// SPDX-License-Identifier: Apache-2.0
// The messages of gpumem-web: those of `gpumemctl -o json`, without members that are zero, empty or
// false, and with moments (Unix time in milliseconds) in place of ages.

export type Sees = "all" | "own" | "none";

export interface Device {
  device_uuid: string;
  name?: string;
  backend?: string;
  capacity_bytes?: number;
  charged_bytes?: number;
  granularity_bytes?: number;
  driver_free_bytes?: number;
  pci_bus_id?: string;
  index?: number;
  context_pid?: number;
}

export interface ForeignProcess {
  device_uuid?: string;
  pid?: number;
  command?: string;
  bytes?: number;
}

export interface Status {
  version?: string;
  pid?: number;
  backend?: string;
  started_ms?: number;
  draining?: boolean;
  sessions?: number;
  tenants?: number;
  segments?: number;
  config_file?: string;
  runtime_dir?: string;
  notices?: string[];
  foreign_processes?: ForeignProcess[];
  keeps_memory?: boolean;
  generation?: number;
}

export interface DeviceUsage {
  device_uuid: string;
  leased_bytes?: number;
  retained_bytes?: number;
  lingering_bytes?: number;
  charged_bytes?: number;
  limit_bytes?: number;
  guarantee_bytes?: number;
  peak_bytes?: number;
  borrowed_bytes?: number;
  waiting_bytes?: number;
  waiting?: number;
  revocable_bytes?: number;
  unbrokered_bytes?: number;
  obtainable_bytes?: number | null;
}

export interface Usage {
  tenant: string;
  devices?: DeviceUsage[];
  charged_bytes?: number;
  segments?: number;
  sessions?: number;
  denials?: number;
  waiting?: number;
  publications?: number;
  demoted_bytes?: number;
  preload?: string;
}

export interface Quota {
  limit_bytes?: number | null;
  total_limit_bytes?: number | null;
  guarantee_bytes?: number | null;
  priority?: number | null;
  max_segments?: number | null;
  max_sessions?: number | null;
  max_waiting?: number | null;
  max_publications?: number | null;
  max_retained_bytes?: number | null;
  pinned_limit_bytes?: number | null;
  tier_limit_bytes?: number | null;
  swappable?: boolean | null;
  revocable?: boolean | null;
  parent?: string;
}

export interface Tenant {
  usage: Usage;
  quota?: Quota;
  configured?: boolean;
  overridden?: string[];
  made?: { owner?: string; uid?: number; parent?: string; created_ms?: number; ending?: boolean } | null;
}

export interface Session {
  session_id: number;
  tenant: string;
  state?: string;
  pid?: number;
  uid?: number;
  gid?: number;
  client_name?: string;
  command?: string;
  cgroup?: string;
  rule?: string;
  leases?: number;
  leased_bytes?: number;
  since_ms?: number;
  unbrokered_bytes?: number;
  suspended_bytes?: number;
  demoted_bytes?: number;
  serves_suspension?: boolean;
  swappable?: boolean;
  suspension_asked?: boolean;
  idle_since_ms?: number;
}

export interface Segment {
  segment_id: number;
  tenant: string;
  device_uuid: string;
  kind?: string;
  size_bytes?: number;
  state?: string;
  session_ids?: number[];
  leases?: number;
  since_ms?: number;
  lost?: boolean;
  revocable?: boolean;
  publications?: number;
  home_uuid?: string;
  suspended?: number;
  scratch?: boolean;
  dropped_bytes?: number;
}

export interface Lease {
  lease_id: number;
  segment_id: number;
  session_id?: number;
  tenant?: string;
  attached?: boolean;
  publication?: string;
  version?: number;
  shared?: boolean;
  shared_to_any?: boolean;
  suspended?: boolean;
  demoted?: boolean;
  tag?: string;
}

export interface Published {
  tenant: string;
  name: string;
  version: number;
  segment_ids?: number[];
}

export interface Publication {
  tenant: string;
  name: string;
  version?: number;
  segments?: number;
  bytes?: number;
  metadata_bytes?: number;
  access?: string;
  ephemeral?: boolean;
  attached_sessions?: number;
  since_ms?: number;
  expire_after_ms?: number;
  expires_at_ms?: number;
  publisher_session_id?: number;
  publisher_pid?: number;
  publisher_client_name?: string;
  publisher_alive?: boolean;
  suspended_segments?: number;
  suspended_bytes?: number;
  content_id?: string;
}

export interface Denial {
  cause?: string;
  tenant?: string;
  device_uuid?: string;
  asked?: number;
  used?: number;
  limit?: number;
  help?: string;
  limited_tenant?: string;
  holders?: { tenant: string; used?: number }[];
  queued_at?: string;
}

export interface Waiting {
  session_id?: number;
  tenant: string;
  device_uuid: string;
  kind?: string;
  bytes?: number;
  count?: number;
  revocable?: boolean;
  since_ms?: number;
  position?: number;
  blocked_by?: Denial | null;
}

export interface EventRecord {
  number: number;
  time_ms: number;
  event: string;
  text: string;
  tenant?: string;
  fields?: Record<string, unknown>;
}

export interface Snapshot {
  number: number;
  time_ms: number;
  viewer: { sees: Sees };
  status?: Status;
  devices?: Device[];
  tenants?: Tenant[];
  sessions?: Session[];
  segments?: Segment[];
  leases?: Lease[];
  published?: Published[];
  publications?: Publication[];
  waiting?: Waiting[];
}

export interface ListChange<T> {
  set?: T[];
  gone?: (string | number)[];
}

export interface Change {
  number: number;
  time_ms: number;
  status?: Status;
  devices?: ListChange<Device>;
  tenants?: ListChange<Tenant>;
  sessions?: ListChange<Session>;
  segments?: ListChange<Segment>;
  leases?: ListChange<Lease>;
  published?: ListChange<Published>;
  publications?: ListChange<Publication>;
  waiting?: Waiting[];
}

export interface History {
  interval_ms: number;
  since_ms: number;
  now_ms: number;
  series?: HistorySeries[];
}

export interface HistorySeries {
  tenant: string;
  device_uuid: string;
  cut?: boolean;
  points?: number[][]; // [time_ms, charged, limit, guarantee, waiting, leased]
}

export interface Me {
  uid: number;
  user?: string;
  sees?: "all" | "some";
  node?: string;
  version?: string;
}

export interface NodeOverview {
  node?: string;
  version?: string;
  daemon?: "ok" | "lost";
  devices?: { index?: number; uuid: string; name?: string; capacity_bytes?: number; charged_bytes?: number }[];
  tenants?: number;
  sessions?: number;
  waiting?: number;
}

export interface Peer {
  url: string;
  state: "ok" | "failed" | "unknown";
  error?: string;
  seen_ms?: number;
  overview?: NodeOverview | null;
}
