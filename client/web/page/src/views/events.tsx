// SPDX-License-Identifier: Apache-2.0
// The daemon's events as they come, and those about one object.
import { useState } from "preact/hooks";
import { formatClock, formatMoment, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { MAX_EVENTS } from "../lib/store";
import type { EventRecord } from "../lib/wire";
import { Table, TenantLink } from "./parts";

// Events of requests that failed, and of memory or processes that were taken away.
const BAD = new Set(["denied", "refused", "lost", "signalled", "missed", "reload-refused", "revoking", "revoked"]);

function timeOf(record: EventRecord) {
  const old = store.nowMs() - record.time_ms > 20 * 3600 * 1000;
  return <time title={formatMoment(record.time_ms)}>{old ? formatMoment(record.time_ms) : formatClock(record.time_ms)}</time>;
}

export function EventTable({ rows }: { rows: EventRecord[] }) {
  return (
    <Table caption="Events, the newest first" rows={rows} stack rowKey={(row) => `${row.number} ${row.time_ms}`}
           empty="None of the last events is about it." columns={[
             { name: "Time", cell: timeOf },
             { name: "Event", cell: (row) => <span class={BAD.has(row.event) ? "tag warn" : "tag"}>{shown(row.event)}</span> },
             { name: "Tenant", cell: (row) => (row.tenant ? <TenantLink name={row.tenant} swatch /> : ""), wide: true },
             { name: "What happened", cell: (row) => <span class="event-text">{shown(row.text, 2000)}</span> },
           ]} />
  );
}

/** Returns the events with a value in a field, the newest first. */
export function eventsAbout(field: string, value: string): EventRecord[] {
  return store.events.filter((each) => {
    if (field === "tenant" && each.tenant === value) return true;
    const told = each.fields?.[field];
    if (Array.isArray(told)) return told.some((one) => String(one) === value);
    return told !== undefined && String(told) === value;
  }).reverse();
}

export function EventsView() {
  useTopics("events", "tenants");
  const [text, setText] = useState("");
  const [kind, setKind] = useState("");
  const [frozen, setFrozen] = useState<EventRecord[] | null>(null);
  const all = frozen ?? store.events;
  const kinds = [...new Set(all.map((each) => each.event))].sort();
  const wanted = text.toLowerCase();
  const rows = all.filter((each) =>
    (!kind || each.event === kind) &&
    (!wanted || each.text.toLowerCase().includes(wanted) || (each.tenant ?? "").toLowerCase().includes(wanted)),
  ).reverse();
  return (
    <>
      <h1>Events</h1>
      <div class="filters">
        <label>Contains <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} /></label>
        <label>Event{" "}
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map((each) => <option key={each} value={each}>{shown(each)}</option>)}
          </select>
        </label>
        <button type="button" aria-pressed={frozen !== null}
                onClick={() => setFrozen(frozen ? null : [...store.events])}>
          {frozen ? "Go on" : "Pause"}
        </button>
        <span class="faint">{rows.length} of the last {all.length}{all.length >= MAX_EVENTS ? " that this page keeps" : ""}</span>
      </div>
      <section class="card"><EventTable rows={rows} /></section>
    </>
  );
}
