// SPDX-License-Identifier: Apache-2.0
// Sessions: a table of them, and the view of one.
import { formatBytes, plural, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { leasesOfSession } from "../lib/model";
import type { Session } from "../lib/wire";
import { sessionLabel } from "../treemap/tree";
import { EventTable, eventsAbout } from "./events";
import { Age, Bytes, Facts, Gone, Section, SessionLink, Table, TenantLink } from "./parts";
import { LeasedTable } from "./segments";
import { WaitingTable } from "./waiting";

export function SessionTable({ rows }: { rows: Session[] }) {
  return (
    <Table caption="Sessions" rows={rows} rowKey={(row) => row.session_id} empty="There are no sessions."
           sortBy="Memory" columns={[
             { name: "Session", right: true, cell: (row) => <SessionLink id={row.session_id} />, order: (row) => row.session_id },
             { name: "Process", cell: (row) => shown(row.client_name || row.command), order: (row) => row.client_name || row.command || "" },
             { name: "PID", right: true, cell: (row) => row.pid ?? "", order: (row) => row.pid ?? 0 },
             { name: "User", right: true, cell: (row) => row.uid ?? 0, order: (row) => row.uid ?? 0, wide: true },
             { name: "State", cell: (row) => row.state ?? "", order: (row) => row.state ?? "", wide: true },
             { name: "Memory", right: true, cell: (row) => <Bytes of={row.leased_bytes} />, order: (row) => row.leased_bytes ?? 0 },
             { name: "Leases", right: true, cell: (row) => row.leases ?? 0, order: (row) => row.leases ?? 0, wide: true },
             { name: "Age", right: true, cell: (row) => <Age since={row.since_ms} />, order: (row) => -(row.since_ms ?? 0) },
           ]} />
  );
}

const STATES: Record<string, string> = {
  live: "live",
  lingering: "lingering: its socket is closed, its process lives and may still map memory",
  away: "away: the daemon has restarted, and its client has not come back yet",
};

export function SessionView({ id }: { id: number }) {
  useTopics("sessions", "leases", "segments", "waiting", "events");
  const session = store.sessions.get(String(id));
  if (!session) return <Gone what={`Session ${id}`} />;
  const waiting = store.waiting.filter((each) => each.session_id === id);
  return (
    <>
      <p class="eyebrow">Session {id}</p>
      <h1>{sessionLabel(session, id)}</h1>
      <Facts facts={[
        ["Tenant", <TenantLink name={session.tenant} swatch />],
        ["State", STATES[session.state ?? ""] ?? session.state],
        ["Memory", `${formatBytes(session.leased_bytes)} in ${plural(session.leases ?? 0, "lease")}`],
        ["Suspended", session.suspended_bytes ? formatBytes(session.suspended_bytes) : ""],
        ["Demoted", session.demoted_bytes ? `${formatBytes(session.demoted_bytes)}, to host memory` : ""],
        ["Past gpumem", session.unbrokered_bytes ? formatBytes(session.unbrokered_bytes) : ""],
        ["Process", session.pid ? `pid ${session.pid}, ${shown(session.command)}` : shown(session.command)],
        ["Names itself", shown(session.client_name)],
        ["User", `uid ${session.uid ?? 0}, gid ${session.gid ?? 0}`],
        ["Age", <Age since={session.since_ms} />],
        ["Idle for", session.idle_since_ms ? <Age since={session.idle_since_ms} /> : ""],
        ["Can suspend", session.serves_suspension ? (session.swappable ? "yes, also when others need its memory" : "yes, if asked") : ""],
        ["Asked to suspend", session.suspension_asked ? "yes, now" : ""],
        ["Control group", shown(session.cgroup, 4096)],
        ["Rule", shown(session.rule, 1000)],
      ]} />
      {waiting.length > 0 ? <Section title="It waits for memory"><WaitingTable rows={waiting} /></Section> : null}
      <Section title="Memory"><LeasedTable leases={leasesOfSession(store, id)} /></Section>
      <Section title="Events"><EventTable rows={eventsAbout("session", String(id))} /></Section>
    </>
  );
}
