// SPDX-License-Identifier: Apache-2.0
// The queue: who waits for what, since when, behind whom, and what would help.
import type { ComponentChildren } from "preact";
import { formatBytes, waitsFor, whatHelps } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { isOthers } from "../lib/model";
import type { Waiting } from "../lib/wire";
import { Age, DeviceLink, Hidden, SessionLink, Table, TenantLink } from "./parts";

const asked = (row: Waiting) => (row.bytes ?? 0) * (row.count ?? 1);

function sizeOf(row: Waiting): string {
  if (!row.bytes) return "";
  const size = formatBytes(row.bytes);
  return (row.count ?? 1) === 1 ? size : `${row.count} x ${size}`;
}

// Returns who is directly before it in the same queue.
function before(row: Waiting): Waiting | undefined {
  return store.waiting.find((each) =>
    each.device_uuid === row.device_uuid && (each.position ?? 0) === (row.position ?? 0) - 1);
}

function Behind({ row }: { row: Waiting }) {
  const first = before(row);
  if ((row.position ?? 1) <= 1) return <>first in line</>;
  if (!first) return <>{(row.position ?? 1) - 1} others</>;
  return <TenantLink name={first.tenant} swatch />;
}

function Why({ row }: { row: Waiting }) {
  if (!row.blocked_by) return null;
  const help = whatHelps(row.blocked_by);
  return (
    <div class="why">
      {waitsFor(row.blocked_by)}
      {help ? <p class="faint">{help}</p> : null}
    </div>
  );
}

// Of the others' requests only the place is told.
const unlessHidden = (cell: (row: Waiting) => ComponentChildren) =>
  (row: Waiting) => (isOthers(row.tenant) ? <Hidden /> : cell(row));

export function WaitingTable({ rows }: { rows: Waiting[] }) {
  return (
    <Table caption="Requests that wait, in the order in which they are served" rows={rows}
           stack rowKey={(row) => `${row.device_uuid} ${row.position} ${row.session_id ?? ""} ${row.since_ms ?? ""}`}
           empty="No request waits for memory." columns={[
             { name: "Place", right: true, cell: (row) => row.position ?? "" },
             { name: "Device", cell: (row) => <DeviceLink uuid={row.device_uuid} />, wide: true },
             { name: "Tenant", cell: (row) => <TenantLink name={row.tenant} swatch />, order: (row) => row.tenant },
             { name: "Session", cell: unlessHidden((row) => (row.session_id ? <SessionLink id={row.session_id} label /> : "")), wide: true },
             { name: "Asks for", right: true, cell: unlessHidden((row) => <span class="number">{sizeOf(row)}</span>), order: asked },
             { name: "Waiting", right: true, cell: unlessHidden((row) => <Age since={row.since_ms} />), order: (row) => -(row.since_ms ?? 0) },
             { name: "Behind", cell: (row) => <Behind row={row} />, wide: true },
             { name: "Waits for, and what would help", cell: unlessHidden((row) => <Why row={row} />) },
           ]} />
  );
}

export function WaitingView() {
  useTopics("waiting", "sessions", "tenants");
  return (
    <>
      <h1>Queue</h1>
      <p class="lead">
        Requests that wait for memory. They are served by device: tenants furthest below their guarantee
        first, then by priority, then by arrival.
      </p>
      <section class="card"><WaitingTable rows={store.waiting} /></section>
    </>
  );
}
