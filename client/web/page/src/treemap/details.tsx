// SPDX-License-Identifier: Apache-2.0
// Facts about the tile that is pointed at.
import type { ComponentChildren } from "preact";
import { formatBytes, formatPercent, shortDevice, shown } from "../lib/format";
import { store } from "../lib/instance";
import { publicationsOfSegment } from "../lib/model";
import { hrefs } from "../lib/routes";
import { Age } from "../views/parts";
import { sessionLabel, stateOf, type TreeNode } from "./tree";

const KINDS: Record<string, string> = {
  device: "Device", tenant: "Tenant", session: "Session", publication: "Publication", group: "Segments",
  segment: "Segment", free: "Free memory", outside: "Memory outside of gpumem", process: "Process",
};

function Row({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function SegmentRows({ node }: { node: TreeNode }) {
  const segment = node.segment;
  if (!segment) return null;
  const live = store.segments.get(String(segment.segment_id)) ?? segment;
  const sessions = live.session_ids ?? [];
  const published = publicationsOfSegment(store, live.segment_id);
  return (
    <>
      <Row name="State">{stateOf(live)}{live.lost ? ", lost" : ""}{live.revocable ? ", revocable" : ""}</Row>
      <Row name="Kind">{live.kind ?? "unknown"}</Row>
      {live.since_ms ? <Row name="Age"><Age since={live.since_ms} /></Row> : null}
      <Row name="Used by">
        {sessions.length === 0 ? "no session" : sessions.slice(0, 6).map((id) => (
          <a class="block" key={id} href={hrefs.session(id)}>
            {sessionLabel(store.sessions.get(String(id)), id)}
          </a>
        ))}
        {sessions.length > 6 ? `and ${sessions.length - 6} more` : null}
      </Row>
      {published.length > 0 ? (
        <Row name="Published as">
          {published.slice(0, 3).map((each) => (
            <a class="block" key={`${each.name}/${each.version}`} href={hrefs.publication(each.tenant, each.name)}>
              {shown(each.tenant)}/{shown(each.name)} v{each.version}
            </a>
          ))}
        </Row>
      ) : null}
      {live.home_uuid ? <Row name="From device">{shortDevice(store.devices, live.home_uuid)}</Row> : null}
    </>
  );
}

export function Details({ path, whole, empty }: { path: TreeNode[]; whole: number; empty: string }) {
  const node = path[path.length - 1];
  if (!node) return <aside class="details" aria-label="Details of the tile"><p class="faint">{empty}</p></aside>;
  const tenants = path.filter((each) => each.kind === "tenant");
  const segments = node.kind === "segment" ? 0 : countSegments(node);
  return (
    <aside class="details" aria-label="Details of the tile">
      <p class="eyebrow">{KINDS[node.kind]}</p>
      <h2>{node.href ? <a href={node.href}>{node.label}</a> : node.label}</h2>
      <p class="figure">{formatBytes(node.bytes)} <small>{formatPercent(node.bytes, whole)}</small></p>
      <dl class="facts">
        {node.kind !== "tenant" && tenants.length > 0 ? (
          <Row name="Tenant">
            {tenants.map((each, i) => (
              <span key={each.key}>{i > 0 ? " / " : ""}{each.href ? <a href={each.href}>{each.label}</a> : each.label}</span>
            ))}
          </Row>
        ) : null}
        <SegmentRows node={node} />
        {segments > 0 ? <Row name="Segments">{segments}</Row> : null}
        {node.shared ? <Row name="Shared">{node.kind === "segment" ? "yes, charged once" : "in part"}</Row> : null}
      </dl>
      {node.note ? <p class="faint">{node.note}</p> : null}
    </aside>
  );
}

function countSegments(node: TreeNode): number {
  let count = node.kind === "segment" ? 1 : 0;
  for (const child of node.children) count += countSegments(child);
  return count;
}
