// SPDX-License-Identifier: Apache-2.0
// Segments: a table of them, and the view of one.
import { formatBytes, plural, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { isShared, leasesOfSegment, publicationsOfSegment } from "../lib/model";
import type { Lease, Segment } from "../lib/wire";
import { stateOf } from "../treemap/tree";
import { EventTable, eventsAbout } from "./events";
import { Age, Bytes, DeviceLink, Facts, Gone, PublicationLink, Section, SegmentLink, SessionLink, Table, TenantLink } from "./parts";

export function SegmentTable({ rows }: { rows: Segment[] }) {
  return (
    <Table caption="Segments" rows={rows} rowKey={(row) => row.segment_id} empty="There are no segments."
           sortBy="Size" columns={[
             { name: "Segment", right: true, cell: (row) => <SegmentLink id={row.segment_id} />, order: (row) => row.segment_id },
             { name: "Size", right: true, cell: (row) => <Bytes of={row.size_bytes} />, order: (row) => row.size_bytes ?? 0 },
             { name: "State", cell: (row) => stateOf(row), order: (row) => stateOf(row) },
             { name: "Device", cell: (row) => <DeviceLink uuid={row.device_uuid} />, order: (row) => row.device_uuid, wide: true },
             { name: "Kind", cell: (row) => row.kind ?? "", order: (row) => row.kind ?? "", wide: true },
             { name: "Sessions", cell: (row) => <SessionIds ids={row.session_ids ?? []} /> },
             { name: "Shared", cell: (row) => (isShared(row) ? "yes" : "no"), order: (row) => Number(isShared(row)), wide: true },
             { name: "Age", right: true, cell: (row) => <Age since={row.since_ms} />, order: (row) => -(row.since_ms ?? 0), wide: true },
           ]} />
  );
}

function SessionIds({ ids }: { ids: number[] }) {
  return (
    <>
      {ids.slice(0, 4).map((id, i) => <span key={id}>{i > 0 ? ", " : ""}<SessionLink id={id} /></span>)}
      {ids.length > 4 ? ` and ${ids.length - 4} more` : ""}
    </>
  );
}

export function leaseNotes(lease: Lease): string {
  return [
    lease.attached ? "attached" : "",
    lease.shared_to_any ? "ticket for any session" : lease.shared ? "ticket for its tenant" : "",
    lease.suspended ? "suspended" : "",
    lease.demoted ? "demoted to host memory" : "",
    lease.tag ? `tag ${shown(lease.tag)}` : "",
  ].filter(Boolean).join(", ");
}

export function SegmentView({ id }: { id: number }) {
  useTopics("segments", "leases", "published", "sessions", "events");
  const segment = store.segments.get(String(id));
  if (!segment) return <Gone what={`Segment ${id}`} />;
  const published = publicationsOfSegment(store, id);
  const leases = leasesOfSegment(store, id);
  return (
    <>
      <p class="eyebrow">Segment</p>
      <h1>Segment {id} <span class="faint">{formatBytes(segment.size_bytes)}</span></h1>
      <Facts facts={[
        ["Tenant", <TenantLink name={segment.tenant} swatch />],
        ["Device", <DeviceLink uuid={segment.device_uuid} />],
        ["State", `${stateOf(segment)}${segment.lost ? ", lost" : ""}`],
        ["Kind", segment.kind ?? "unknown"],
        ["Age", <Age since={segment.since_ms} />],
        ["Shared", isShared(segment) ? `by ${plural(segment.session_ids?.length ?? 0, "session")}; charged once, to its tenant` : "no"],
        ["Contents of", segment.home_uuid ? <DeviceLink uuid={segment.home_uuid} /> : ""],
        ["Revocable", segment.revocable ? "yes: it may be taken back" : ""],
        ["Scratch", segment.scratch ? "yes: its bytes are dropped when it is suspended" : ""],
        ["Dropped", segment.dropped_bytes ? formatBytes(segment.dropped_bytes) : ""],
      ]} />
      <Section title="Leases">
        <Table caption="Leases" rows={leases} rowKey={(row) => row.lease_id} empty="No session leases it." columns={[
          { name: "Lease", right: true, cell: (row) => row.lease_id },
          { name: "Session", cell: (row) => (row.session_id ? <SessionLink id={row.session_id} label /> : "of another tenant") },
          { name: "Tenant", cell: (row) => <TenantLink name={row.tenant ?? ""} swatch /> },
          { name: "Publication", cell: (row) => (row.publication ? `${shown(row.publication)} v${row.version ?? 0}` : ""), wide: true },
          { name: "Notes", cell: leaseNotes },
        ]} />
      </Section>
      {published.length > 0 ? (
        <Section title="Published as">
          <Table caption="Publications that contain it" rows={published} rowKey={(row) => `${row.tenant}/${row.name}/${row.version}`}
                 empty="" columns={[
                   { name: "Publication", cell: (row) => <PublicationLink tenant={row.tenant} name={row.name} /> },
                   { name: "Version", right: true, cell: (row) => row.version },
                   { name: "Segments", right: true, cell: (row) => row.segment_ids?.length ?? 0 },
                 ]} />
        </Section>
      ) : null}
      <Section title="Events"><EventTable rows={eventsAbout("segment", String(id))} /></Section>
    </>
  );
}

export function LeasedTable({ leases }: { leases: Lease[] }) {
  const sizeOf = (lease: Lease) => store.segments.get(String(lease.segment_id))?.size_bytes ?? 0;
  return (
    <Table caption="Leases" rows={leases} rowKey={(row) => row.lease_id} empty="It holds no memory." sortBy="Size" columns={[
      { name: "Segment", right: true, cell: (row) => <SegmentLink id={row.segment_id} />, order: (row) => row.segment_id },
      { name: "Size", right: true, cell: (row) => <Bytes of={sizeOf(row)} />, order: sizeOf },
      { name: "Device", cell: (row) => <DeviceLink uuid={store.segments.get(String(row.segment_id))?.device_uuid ?? ""} /> },
      { name: "Charged to", wide: true, cell: (row) => <TenantLink name={store.segments.get(String(row.segment_id))?.tenant ?? ""} swatch /> },
      { name: "Publication", wide: true, cell: (row) => (row.publication ? `${shown(row.publication)} v${row.version ?? 0}` : "") },
      { name: "Notes", cell: leaseNotes },
    ]} />
  );
}
