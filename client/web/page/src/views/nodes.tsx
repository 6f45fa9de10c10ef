// SPDX-License-Identifier: Apache-2.0
// Several nodes at a glance: what each node's gpumem-web says of it.
import { useEffect, useState } from "preact/hooks";
import { formatBytes, formatPercent, shown } from "../lib/format";
import { fetchPeers } from "../lib/stream";
import type { Peer } from "../lib/wire";
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

function PeerCard({ peer }: { peer: Peer }) {
  const overview = peer.state === "ok" ? peer.overview : null;
  const link = linkOf(peer.url);
  const name = shown(overview?.node) || shown(peer.url);
  return (
    <article class="card">
      <h2>{link ? <a href={link} rel="noreferrer noopener">{name}</a> : name}</h2>
      <p class="faint">{shown(peer.url)}</p>
      {peer.state === "failed" ? <p><span class="tag warn">does not answer</span> {shown(peer.error)}</p> : null}
      {peer.state === "unknown" ? <p class="faint">Not asked yet.</p> : null}
      {overview?.daemon === "lost" ? <p><span class="tag warn">gpumemd lost</span></p> : null}
      {(overview?.devices ?? []).map((each) => (
        <div class="bar-row" key={each.uuid}>
          <span>{each.index ?? 0} {shown(each.name)}</span>
          <meter min={0} max={each.capacity_bytes || 1} value={each.charged_bytes ?? 0}
                 aria-label={`Memory of device ${each.index ?? 0}`} />
          <span class="number">{formatBytes(each.charged_bytes)} of {formatBytes(each.capacity_bytes)}, {formatPercent(each.charged_bytes, each.capacity_bytes)}</span>
        </div>
      ))}
      {overview ? (
        <p class="faint">
          {overview.tenants ?? 0} tenants, {overview.sessions ?? 0} sessions, {overview.waiting ?? 0} waiting
        </p>
      ) : null}
      {peer.seen_ms ? <p class="faint">Seen <Age since={peer.seen_ms} /> ago</p> : null}
    </article>
  );
}

export function NodesView() {
  const [peers, setPeers] = useState<Peer[] | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let here = true;
    const load = () =>
      fetchPeers().then(
        (told) => {
          if (!here) return;
          setPeers(told);
          setError("");
        },
        (reason: unknown) => here && setError(String((reason as Error).message)));
    void load();
    const timer = setInterval(() => void load(), EACH_MS);
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
      <div class="device-grid">{(peers ?? []).map((each) => <PeerCard key={each.url} peer={each} />)}</div>
    </>
  );
}
