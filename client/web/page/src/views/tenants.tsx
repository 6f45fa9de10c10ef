// SPDX-License-Identifier: Apache-2.0
// Tenants: all of them, and one with its limits, sessions, memory and last hour.
import { useState } from "preact/hooks";
import { formatBytes, formatPercent, plural, shortDevice, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { isOthers, memoryOf, parentOf, pathOf, segmentsOfTenant, sessionsOfTenant, tenantsUnder } from "../lib/model";
import type { DeviceUsage, Tenant } from "../lib/wire";
import { EventTable, eventsAbout } from "./events";
import { Bytes, DeviceLink, Facts, Gone, Hidden, Section, Table, TenantLink } from "./parts";
import { PublicationTable } from "./publications";
import { SegmentTable } from "./segments";
import { SessionTable } from "./sessions";
import { TimelineChart } from "./timeline";
import { WaitingTable } from "./waiting";

// Returns a count of the tenant; those of others are not told.
const count = (row: Tenant, name: "sessions" | "segments" | "waiting" | "denials") =>
  (isOthers(row.usage.tenant) ? <Hidden /> : row.usage[name] ?? 0);

function Under({ row }: { row: Tenant }) {
  if (isOthers(row.usage.tenant)) return <Hidden />;
  return parentOf(row) ? <TenantLink name={parentOf(row)} /> : null;
}

export function TenantTable({ rows, caption = "Tenants" }: { rows: Tenant[]; caption?: string }) {
  return (
    <Table caption={caption} rows={rows} rowKey={(row) => row.usage.tenant} empty="There are no tenants."
           sortBy="Memory" columns={[
             { name: "Tenant", cell: (row) => <TenantLink name={row.usage.tenant} swatch />, order: (row) => row.usage.tenant },
             { name: "Under", cell: (row) => <Under row={row} />, order: parentOf, wide: true },
             { name: "Memory", right: true, cell: (row) => <Bytes of={memoryOf(row)} />, order: memoryOf },
             { name: "Sessions", right: true, cell: (row) => count(row, "sessions"), order: (row) => row.usage.sessions ?? 0 },
             { name: "Segments", right: true, cell: (row) => count(row, "segments"), order: (row) => row.usage.segments ?? 0, wide: true },
             { name: "Waiting", right: true, cell: (row) => count(row, "waiting"), order: (row) => row.usage.waiting ?? 0, wide: true },
             { name: "Denials", right: true, cell: (row) => count(row, "denials"), order: (row) => row.usage.denials ?? 0, wide: true },
           ]} />
  );
}

export function TenantsView() {
  useTopics("tenants");
  return (
    <>
      <h1>Tenants</h1>
      <p class="lead">A tenant is charged for memory: a user, a job or a team. Memory of a team contains that of the tenants under it.</p>
      <section class="card"><TenantTable rows={[...store.tenants.values()]} /></section>
    </>
  );
}

function limitOf(usage: DeviceUsage): string {
  const capacity = store.devices.get(usage.device_uuid)?.capacity_bytes;
  return usage.limit_bytes && usage.limit_bytes === capacity ? `${formatBytes(usage.limit_bytes)} (all)` : formatBytes(usage.limit_bytes);
}

function DeviceUsageTable({ rows }: { rows: DeviceUsage[] }) {
  return (
    <Table caption="Use by device" rows={rows} rowKey={(row) => row.device_uuid} empty="It has used no device." columns={[
      { name: "Device", cell: (row) => <DeviceLink uuid={row.device_uuid} /> },
      { name: "Charged", right: true, cell: (row) => <Bytes of={row.charged_bytes} /> },
      { name: "Limit", right: true, cell: (row) => <span class="number">{limitOf(row)}</span> },
      { name: "Used", right: true, cell: (row) => formatPercent(row.charged_bytes, row.limit_bytes), wide: true },
      { name: "Guarantee", right: true, cell: (row) => (row.guarantee_bytes ? <Bytes of={row.guarantee_bytes} /> : "none"), wide: true },
      { name: "Leased", right: true, cell: (row) => <Bytes of={row.leased_bytes} />, wide: true },
      { name: "Retained", right: true, cell: (row) => <Bytes of={row.retained_bytes} />, wide: true },
      { name: "Lingering", right: true, cell: (row) => <Bytes of={row.lingering_bytes} />, wide: true },
      { name: "Waits for", right: true, cell: (row) => <Bytes of={row.waiting_bytes} />, wide: true },
      { name: "Could get", right: true, cell: (row) => (row.obtainable_bytes === undefined || row.obtainable_bytes === null
        ? "—" : <Bytes of={row.obtainable_bytes} />), wide: true },
      { name: "Peak", right: true, cell: (row) => <Bytes of={row.peak_bytes} /> },
    ]} />
  );
}

// The sum of tenants that the viewer may not see: there are no other figures of it.
function OthersView({ others }: { others: Tenant | undefined }) {
  const size = (name: "charged_bytes" | "leased_bytes" | "retained_bytes" | "lingering_bytes") =>
    (row: DeviceUsage) => <Bytes of={row[name]} />;
  return (
    <>
      <h1>(others)</h1>
      <p class="lead">Memory of tenants that you may not see, as one sum.</p>
      {others ? <Facts facts={[["Memory", formatBytes(memoryOf(others))]]} /> : null}
      <Section title="Use by device">
        <Table caption="Use by device" rows={others?.usage.devices ?? []} rowKey={(row) => row.device_uuid}
               empty="They hold no memory." columns={[
                 { name: "Device", cell: (row) => <DeviceLink uuid={row.device_uuid} /> },
                 { name: "Charged", right: true, cell: size("charged_bytes") },
                 { name: "Leased", right: true, cell: size("leased_bytes") },
                 { name: "Retained", right: true, cell: size("retained_bytes"), wide: true },
                 { name: "Lingering", right: true, cell: size("lingering_bytes"), wide: true },
               ]} />
      </Section>
    </>
  );
}

function quotaFacts(tenant: Tenant): [string, string | number][] {
  const quota = tenant.quota ?? {};
  const size = (value: number | null | undefined) => (value === undefined || value === null ? "" : formatBytes(value));
  const count = (value: number | null | undefined) => value ?? "";
  return [
    ["Limit a device", size(quota.limit_bytes)],
    ["Total limit", size(quota.total_limit_bytes)],
    ["Guarantee a device", size(quota.guarantee_bytes)],
    ["Priority", count(quota.priority)],
    ["Sessions at most", count(quota.max_sessions)],
    ["Segments at most", count(quota.max_segments)],
    ["Waiting at most", count(quota.max_waiting)],
    ["Publications at most", count(quota.max_publications)],
  ];
}

export function TenantView({ name }: { name: string }) {
  useTopics("tenants", "devices", "sessions", "segments", "publications", "waiting", "events");
  const [picked, setPicked] = useState("");
  const tenant = store.tenants.get(name);
  if (isOthers(name) && store.sees !== "all") return <OthersView others={tenant} />;
  if (!tenant) return <Gone what={`Tenant ${shown(name)}`} />;
  const usage = tenant.usage;
  const devices = usage.devices ?? [];
  const most = devices.reduce<DeviceUsage | undefined>(
    (best, each) => ((each.charged_bytes ?? 0) > (best?.charged_bytes ?? -1) ? each : best), undefined);
  const device = devices.some((each) => each.device_uuid === picked) ? picked : most?.device_uuid;
  const above = pathOf(store, name).slice(0, -1);
  const under = tenantsUnder(store, name);
  const waiting = store.waiting.filter((each) => each.tenant === name);
  const publications = [...store.publications.values()].filter((each) => each.tenant === name);
  return (
    <>
      <p class="eyebrow">Tenant{above.map((each) => <span key={each}> · <TenantLink name={each} /></span>)}</p>
      <h1>{shown(name)}</h1>
      <Facts facts={[
        ["Memory", formatBytes(usage.charged_bytes)],
        ["In host memory", usage.demoted_bytes ? `${formatBytes(usage.demoted_bytes)} demoted` : ""],
        ["Objects", `${plural(usage.sessions ?? 0, "session")}, ${plural(usage.segments ?? 0, "segment")}, ${plural(usage.publications ?? 0, "publication")}`],
        ["Denied so far", usage.denials ?? 0],
        ["Made", tenant.made ? "at run time" : tenant.configured ? "by the configuration" : ""],
        ["State", tenant.made?.ending ? "ending: it gets nothing new" : ""],
        ...quotaFacts(tenant),
      ]} />
      <Section title="Use by device"><DeviceUsageTable rows={devices} /></Section>
      {device ? (
        <Section title="The last hour">
          {devices.length > 1 ? (
            <label class="filters">Device{" "}
              <select value={device} onChange={(event) => setPicked(event.currentTarget.value)}>
                {devices.map((each) => (
                  <option key={each.device_uuid} value={each.device_uuid}>{shortDevice(store.devices, each.device_uuid)}</option>
                ))}
              </select>
            </label>
          ) : null}
          <TimelineChart device={device} tenant={name} key={device} />
        </Section>
      ) : null}
      {under.length > 0 ? <Section title="Tenants under it"><TenantTable rows={under} caption="Tenants under it" /></Section> : null}
      {waiting.length > 0 ? <Section title="Waiting for memory"><WaitingTable rows={waiting} /></Section> : null}
      <Section title="Sessions"><SessionTable rows={sessionsOfTenant(store, name)} /></Section>
      {publications.length > 0 ? <Section title="Publications"><PublicationTable rows={publications} /></Section> : null}
      <Section title="Segments"><SegmentTable rows={segmentsOfTenant(store, name)} /></Section>
      <Section title="Events"><EventTable rows={eventsAbout("tenant", name)} /></Section>
    </>
  );
}
