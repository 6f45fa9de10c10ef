// SPDX-License-Identifier: Apache-2.0
// Publications: all of them, and one with its versions and who is attached.
import { formatBytes, plural, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { leasesOfPublication } from "../lib/model";
import { publicationKey } from "../lib/store";
import type { Publication, Published, Segment } from "../lib/wire";
import { EventTable, eventsAbout } from "./events";
import { Age, Until, Bytes, Facts, Gone, PublicationLink, Section, SessionLink, Table, TenantLink } from "./parts";
import { SegmentTable } from "./segments";

const ACCESS: Record<string, string> = { tenant: "its tenant", any: "every tenant" };
const accessOf = (each: Publication) => ACCESS[each.access ?? ""] ?? shown(each.access);

function lifeOf(each: Publication) {
  if (each.ephemeral) return <>until its publisher ends</>;
  if (each.expires_at_ms) return <>ends in <Until moment={each.expires_at_ms} /></>;
  if (each.expire_after_ms) return <>while it is attached</>;
  return <>until it is unpublished</>;
}

export function PublicationTable({ rows }: { rows: Publication[] }) {
  return (
    <Table caption="Publications" rows={rows} rowKey={(row) => publicationKey(row.tenant, row.name)}
           empty="There are no publications." sortBy="Size" columns={[
             { name: "Name", cell: (row) => <PublicationLink tenant={row.tenant} name={row.name} />,
               order: (row) => publicationKey(row.tenant, row.name) },
             { name: "Version", right: true, cell: (row) => row.version ?? 0, order: (row) => row.version ?? 0 },
             { name: "Size", right: true, cell: (row) => <Bytes of={row.bytes} />, order: (row) => row.bytes ?? 0 },
             { name: "Segments", right: true, wide: true, cell: (row) => row.segments ?? 0, order: (row) => row.segments ?? 0 },
             { name: "Attached", right: true, cell: (row) => row.attached_sessions ?? 0,
               order: (row) => row.attached_sessions ?? 0 },
             { name: "Open to", wide: true, cell: accessOf },
             { name: "Stays", wide: true, cell: lifeOf },
             { name: "Age", right: true, cell: (row) => <Age since={row.since_ms} />, order: (row) => -(row.since_ms ?? 0) },
             { name: "State", cell: (row) => (row.suspended_segments ? <span class="tag">suspended</span> : "") },
           ]} />
  );
}

export function PublicationsView() {
  useTopics("publications", "tenants");
  return (
    <>
      <h1>Publications</h1>
      <p class="lead">Memory under a name, such as a model's weights. Sessions attach to it without a copy; it can outlive its publisher.</p>
      <section class="card"><PublicationTable rows={[...store.publications.values()]} /></section>
    </>
  );
}

// The sessions that use a publication, each with the versions that it has.
function attachedTo(key: string): { id: number; versions: string; segments: number }[] {
  const sessions = new Map<number, { versions: Set<number>; segments: Set<number> }>();
  for (const lease of leasesOfPublication(store, key)) {
    if (!lease.attached || !lease.session_id) continue;
    let entry = sessions.get(lease.session_id);
    if (!entry) {
      entry = { versions: new Set(), segments: new Set() };
      sessions.set(lease.session_id, entry);
    }
    if (lease.version) entry.versions.add(lease.version);
    entry.segments.add(lease.segment_id);
  }
  return [...sessions].map(([id, each]) => ({
    id, segments: each.segments.size, versions: [...each.versions].sort((a, b) => a - b).map((v) => `v${v}`).join(", "),
  }));
}

function sizeOfVersion(published: Published): number {
  return (published.segment_ids ?? []).reduce((sum, id) => sum + (store.segments.get(String(id))?.size_bytes ?? 0), 0);
}

export function PublicationView({ tenant, name }: { tenant: string; name: string }) {
  useTopics("publications", "published", "leases", "sessions", "segments", "events");
  const key = publicationKey(tenant, name);
  const publication = store.publications.get(key);
  const title = `${shown(tenant)}/${shown(name)}`;
  if (!publication) return <Gone what={`Publication ${title}`} />;
  const versions = [...store.published.values()]
    .filter((each) => each.tenant === tenant && each.name === name)
    .sort((a, b) => b.version - a.version);
  const newest = versions[0];
  const segments = (newest?.segment_ids ?? []).map((id) => store.segments.get(String(id)))
    .filter((each): each is Segment => each !== undefined);
  const publisher = publication.publisher_session_id;
  return (
    <>
      <p class="eyebrow">Publication</p>
      <h1>{title}</h1>
      <Facts facts={[
        ["Tenant", <TenantLink name={tenant} swatch />],
        ["Version", publication.version ?? 0],
        ["Size", `${formatBytes(publication.bytes)} in ${plural(publication.segments ?? 0, "segment")}`],
        ["Metadata", publication.metadata_bytes ? formatBytes(publication.metadata_bytes) : ""],
        ["Open to", accessOf(publication)],
        ["Stays", lifeOf(publication)],
        ["Published", <><Age since={publication.since_ms} /> ago</>],
        ["By", publisher ? (
          store.sessions.has(String(publisher))
            ? <SessionLink id={publisher} label />
            : `session ${publisher}, ${shown(publication.publisher_client_name)}, which has ended`
        ) : ""],
        ["Suspended", publication.suspended_segments
          ? `${formatBytes(publication.suspended_bytes)} in the host tier; an attach brings it back` : ""],
        ["Content id", shown(publication.content_id)],
      ]} />
      <Section title="Attached sessions">
        <Table caption="Attached sessions" rows={attachedTo(key)} rowKey={(row) => row.id} sortBy="Segments"
               empty="No session is attached." columns={[
                 { name: "Session", cell: (row) => <SessionLink id={row.id} label />, order: (row) => row.id },
                 { name: "Tenant", cell: (row) => <TenantLink name={store.sessions.get(String(row.id))?.tenant ?? ""} swatch /> },
                 { name: "Version", right: true, cell: (row) => row.versions },
                 { name: "Segments", right: true, cell: (row) => row.segments, order: (row) => row.segments },
               ]} />
      </Section>
      <Section title="Versions">
        <Table caption="Versions that are there" rows={versions} rowKey={(row) => row.version} empty="None is listed." columns={[
          { name: "Version", right: true, cell: (row) => row.version },
          { name: "Segments", right: true, cell: (row) => row.segment_ids?.length ?? 0 },
          { name: "Size", right: true, cell: (row) => <Bytes of={sizeOfVersion(row)} /> },
        ]} />
      </Section>
      <Section title="Segments of the newest version"><SegmentTable rows={segments} /></Section>
      <Section title="Events"><EventTable rows={eventsAbout("publication", key)} /></Section>
    </>
  );
}
