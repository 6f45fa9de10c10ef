// SPDX-License-Identifier: Apache-2.0
// The first view, all devices at a glance, and the view of one device.
import { deviceTitle, formatBytes, formatPercent, isHostMemory, isTier, shown } from "../lib/format";
import { store, useTopics } from "../lib/instance";
import { devicesInOrder, held, holdingsOn, type Holding } from "../lib/model";
import { hrefs } from "../lib/routes";
import type { Device } from "../lib/wire";
import { Treemap } from "../treemap/map";
import { deviceTree } from "../treemap/tree";
import { Legend } from "./legend";
import { Bytes, Facts, Gone, Section, Table, TenantLink } from "./parts";
import { TimelineChart } from "./timeline";
import { WaitingTable } from "./waiting";

const buildOf = (uuid: string) => () => {
  const device = store.devices.get(uuid);
  return device ? deviceTree(store, device) : null;
};

function DeviceCard({ device }: { device: Device }) {
  const holdings = holdingsOn(store, device);
  const all = held(holdings.all);
  const waiting = store.waiting.filter((each) => each.device_uuid === device.device_uuid).length;
  return (
    <a class="card device-card" href={hrefs.device(device.device_uuid)}>
      <span class="device-head">
        <strong>{deviceTitle(device)}</strong>
        <span class="faint">{isHostMemory(device.device_uuid) ? "" : shown(device.name)}</span>
      </span>
      <span class="device-figures">
        <span><b>{formatBytes(all)}</b> of {formatBytes(device.capacity_bytes)} held</span>
        <span>{formatBytes(holdings.free)} free</span>
        {holdings.outside > 0 ? <span>{formatBytes(holdings.outside)} not from gpumem</span> : null}
        {waiting > 0 ? <span class="tag warn">{waiting} waiting</span> : null}
      </span>
      <Treemap small build={buildOf(device.device_uuid)} id={device.device_uuid} name={deviceTitle(device)} />
    </a>
  );
}

export function MemoryView() {
  useTopics("devices", "tenants", "waiting");
  const devices = devicesInOrder(store);
  return (
    <>
      <h1>Memory</h1>
      {devices.length === 0 ? <p class="faint">The daemon has no devices.</p> : null}
      <div class={devices.length > 1 ? "device-grid" : "device-grid one"}>
        {devices.map((each) => <DeviceCard key={each.device_uuid} device={each} />)}
      </div>
      <Legend />
      {store.waiting.length > 0 ? <Section title="Waiting for memory"><WaitingTable rows={store.waiting} /></Section> : null}
      <Notices />
    </>
  );
}

function Notices() {
  useTopics("status");
  const notices = store.status.notices ?? [];
  if (notices.length === 0) return null;
  return (
    <Section title="Notices of the daemon">
      <ul>{notices.map((each) => <li key={each}>{shown(each, 1000)}</li>)}</ul>
    </Section>
  );
}

export function DeviceView({ uuid }: { uuid: string }) {
  useTopics("devices", "tenants", "waiting", "status");
  const device = store.devices.get(uuid);
  if (!device) return <Gone what="Device" />;
  const holdings = holdingsOn(store, device);
  const capacity = device.capacity_bytes;
  const title = deviceTitle(device);
  const waiting = store.waiting.filter((each) => each.device_uuid === uuid);
  const figure = (name: string, bytes: number, keep = false): [string, string] | null =>
    bytes > 0 || keep ? [name, `${formatBytes(bytes)} · ${formatPercent(bytes, capacity)}`] : null;
  return (
    <>
      <div>
        <h1>{title} <span class="faint">{isHostMemory(uuid) ? "" : shown(device.name)}</span></h1>
        <p class="eyebrow">{[shown(uuid), shown(device.pci_bus_id)].filter(Boolean).join(" · ")}</p>
      </div>
      <Facts facts={[
        ["Capacity", formatBytes(capacity)],
        figure("Held by tenants", held(holdings.all), true),
        figure("Free", holdings.free, true),
        figure("Not from gpumem", holdings.outside),
      ].filter((each): each is [string, string] => each !== null)} />
      {isTier(uuid) ? <p class="faint">Contents of suspended GPU memory wait here, in host memory, until their sessions resume.</p> : null}
      <Treemap build={buildOf(uuid)} id={uuid} name={title} />
      <Legend />
      <Section title="Who holds it">
        <HoldersTable rows={holdings.tenants} capacity={capacity ?? 0} />
      </Section>
      <Section title="The last hour">
        <TimelineChart device={uuid} />
      </Section>
      {waiting.length > 0 ? <Section title="Waiting for memory here"><WaitingTable rows={waiting} /></Section> : null}
    </>
  );
}

function HoldersTable({ rows, capacity }: { rows: Holding[]; capacity: number }) {
  return (
    <Table caption="Tenants on this device" rows={rows} rowKey={(row) => row.tenant} sortBy="All"
           empty="No tenant holds memory here." columns={[
             { name: "Tenant", cell: (row) => <TenantLink name={row.tenant} swatch />, order: (row) => row.tenant },
             { name: "Leased", right: true, cell: (row) => <Bytes of={row.leased} />, order: (row) => row.leased },
             { name: "Retained", right: true, wide: true, cell: (row) => <Bytes of={row.retained} />, order: (row) => row.retained },
             { name: "Lingering", right: true, wide: true, cell: (row) => <Bytes of={row.lingering} />, order: (row) => row.lingering },
             { name: "All", right: true, cell: (row) => <Bytes of={held(row)} />, order: held },
             { name: "Share", right: true, cell: (row) => formatPercent(held(row), capacity) },
           ]} />
  );
}
