// SPDX-License-Identifier: Apache-2.0
// Several nodes at a glance: what each node's gpumem-web says of it.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatBytes, formatPercent, plural, shown } from "../lib/format";
import { hrefs } from "../lib/routes";
import { fetchOverview, fetchPeers } from "../lib/stream";
import type { NodeOverview, Peer } from "../lib/wire";
import { Age } from "./parts";

const EACH_MS = 10_000;

// Only addresses of the web become links: a peer may be a unix socket, or a mistake.
function linkOf(url: string): string {
  try {
    const parsed = new URL(url);
    return parsed.protocol === "http:" || parsed.protocol === "https:" ? parsed.href : "";
  } catch {
    return "";
  }
}

// Returns what would help against a refusal that gpumem-web tells of.
function helpOf(error: string | undefined): ComponentChildren {
  const status = /\(HTTP (\d{3})\)/.exec(error ?? "")?.[1];
  if (status === "421") return <>: add <code>--host NAME</code> on that node</>;
  return status === "401" || status === "403" ? <>: check <code>--peer-headers</code></> : null;
}

function Bar({ index, part, whole }: { index: number; part: number; whole: number }) {
  const share = whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
  return (
    <div class="bar" role="meter" aria-label={`Memory of device ${index}`} aria-valuemin={0}
         aria-valuemax={100} aria-valuenow={Math.round(100 * share)}
         aria-valuetext={`${formatBytes(part)} of ${formatBytes(whole)}`}>
      <div style={{ width: `${100 * share}%` }} />
    </div>
  );
}

function Totals({ overview }: { overview: NodeOverview }) {
  return (
    <>
      {overview.daemon === "lost" ? <p><span class="tag warn">no figures from gpumemd</span></p> : null}
      {(overview.devices ?? []).map((each) => (
        <div class="bar-row" key={each.uuid}>
          <span>{each.index ?? 0} {shown(each.name)}</span>
          <Bar index={each.index ?? 0} part={each.charged_bytes ?? 0} whole={each.capacity_bytes ?? 0} />
          <span class="number">{formatBytes(each.charged_bytes)} of {formatBytes(each.capacity_bytes)}, {formatPercent(each.charged_bytes, each.capacity_bytes)}</span>
        </div>
      ))}
      {overview.daemon === "lost" ? null : (
        <p class="faint">
          {plural(overview.tenants ?? 0, "tenant")}, {plural(overview.sessions ?? 0, "session")}, {overview.waiting ?? 0} waiting
        </p>
      )}
    </>
  );
}

function ThisNode({ overview }: { overview: NodeOverview }) {
  return (
    <article class="card">
      <h2><a href={hrefs.home}>{shown(overview.node) || "Memory"}</a></h2>
      <p class="faint">This node</p>
      <Totals overview={overview} />
    </article>
  );
}

function PeerCard({ peer }: { peer: Peer }) {
  const overview = peer.state === "ok" ? peer.overview : null;
  const link = linkOf(peer.url);
  const node = shown(overview?.node);
  const name = node || shown(peer.url);
  return (
    <article class="card">
      <h2>{link ? <a href={link} rel="noreferrer noopener">{name}</a> : name}</h2>
      {node ? <p class="faint">{shown(peer.url)}</p> : null}
      {peer.state === "failed" ? <p><span class="tag warn">cannot be read</span> {shown(peer.error)}{helpOf(peer.error)}</p> : null}
      {peer.state === "unknown" ? <p class="faint">Not asked yet.</p> : null}
      {overview ? <Totals overview={overview} /> : null}
      {peer.seen_ms ? <p class="faint">Seen <Age since={peer.seen_ms} /> ago</p> : null}
    </article>
  );
}

export function NodesView() {
  const [peers, setPeers] = useState<Peer[] | null>(null);
  const [self, setSelf] = useState<NodeOverview | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let here = true;
    const load = () => {
      // Where this fails, the page's banner says why.
      fetchOverview().then((told) => here && setSelf(told), () => undefined);
      fetchPeers().then(
        (told) => {
          if (!here) return;
          setPeers(told);
          setError("");
        },
        (reason: unknown) => here && setError(String((reason as Error).message)));
    };
    load();
    const timer = setInterval(load, EACH_MS);
    return () => {
      here = false;
      clearInterval(timer);
    };
  }, []);
  return (
    <>
      <h1>Nodes</h1>
      {error ? <p>The other nodes cannot be shown: {error}</p> : null}
      {peers?.length === 0 ? (
        <p class="lead">gpumem-web knows no other node. Name each with <code>--peer URL</code> to see them side by side here.</p>
      ) : null}
      <div class="device-grid">
        {self ? <ThisNode overview={self} /> : null}
        {(peers ?? []).map((each) => <PeerCard key={each.url} peer={each} />)}
      </div>
    </>
  );
}
