// SPDX-License-Identifier: Apache-2.0
// Small parts that all views use: links to objects, ages that tick, tables, facts.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { formatBytes, formatMoment, formatTickingAge, shortDevice, shown } from "../lib/format";
import { store } from "../lib/instance";
import { placeOf } from "../lib/model";
import { hrefs } from "../lib/routes";
import { coloursOf } from "../lib/palette";
import { useDark } from "../lib/theme";
import { sessionLabel } from "../treemap/tree";

const ticking = new Set<() => void>();
setInterval(() => {
  for (const each of ticking) each();
}, 1000);

// A text that ticks by itself: it changes, and renders nothing.
function Ticking({ moment, text }: { moment: number; text: (moment: number) => string }) {
  const element = useRef<HTMLTimeElement>(null);
  useEffect(() => {
    const tick = () => {
      const now = text(moment);
      const node = element.current?.firstChild;
      if (node && node.nodeValue !== now) node.nodeValue = now;
    };
    tick();
    ticking.add(tick);
    return () => {
      ticking.delete(tick);
    };
  }, [moment]);
  return <time ref={element} title={formatMoment(moment)}>{text(moment)}</time>;
}

const ageOf = (moment: number) => formatTickingAge(store.nowMs() - moment);
const restOf = (moment: number) => formatTickingAge(moment - store.nowMs());

/** How long ago a moment was. */
export const Age = ({ since }: { since: number | undefined }) =>
  (since ? <Ticking moment={since} text={ageOf} /> : null);

/** How long it is until a moment. */
export const Until = ({ moment }: { moment: number }) => <Ticking moment={moment} text={restOf} />;

export const Bytes = ({ of }: { of: number | undefined }) => (
  <span class="number" title={`${of ?? 0} bytes`}>{formatBytes(of)}</span>
);

/** In place of what the viewer may not see. */
export const Hidden = () => <span class="faint">hidden</span>;

/** A small square in the tenant's colour. */
export function Swatch({ tenant }: { tenant: string }) {
  const dark = useDark();
  const colour = coloursOf(placeOf(store, tenant), dark).fill;
  return <span class="swatch" style={{ backgroundColor: colour }} aria-hidden="true" />;
}

export function TenantLink({ name, swatch }: { name: string; swatch?: boolean }) {
  const text = shown(name);
  return (
    <span class="tenant">
      {swatch ? <Swatch tenant={name} /> : null}
      {store.tenants.has(name)
        ? <a class="name" title={text} href={hrefs.tenant(name)}>{text}</a>
        : <span class="name" title={text}>{text}</span>}
    </span>
  );
}

export function SessionLink({ id, label }: { id: number; label?: boolean }) {
  const session = store.sessions.get(String(id));
  const text = label ? sessionLabel(session, id) : String(id);
  return session ? <a class="name" title={text} href={hrefs.session(id)}>{text}</a> : <>{text}</>;
}

export function SegmentLink({ id }: { id: number }) {
  return store.segments.has(String(id)) ? <a href={hrefs.segment(id)}>{id}</a> : <>{id}</>;
}

export function DeviceLink({ uuid }: { uuid: string }) {
  const text = shortDevice(store.devices, uuid);
  return store.devices.has(uuid) ? <a class="name" href={hrefs.device(uuid)}>{text}</a> : <>{text}</>;
}

export function PublicationLink({ tenant, name }: { tenant: string; name: string }) {
  const text = `${shown(tenant)}/${shown(name)}`;
  return store.publications.has(`${tenant}/${name}`)
    ? <a class="name" title={text} href={hrefs.publication(tenant, name)}>{text}</a> : <>{text}</>;
}

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  order?: (row: T) => number | string; // the column can be sorted by it
  right?: boolean; // numbers
  wide?: boolean; // left out on a narrow screen
}

const PAGE = 100;

/** A table of objects: sorted by its head's buttons, a page of rows at a time. */
export function Table<T>({ caption, rows, columns, rowKey, empty, sortBy, stack }: {
  caption: string;
  rows: readonly T[];
  columns: Column<T>[];
  rowKey: (row: T) => string | number;
  empty: string;
  sortBy?: string; // the column at first, downwards; else the order of the rows
  stack?: boolean; // on a narrow screen a row is a small list of names and values
}) {
  const [sort, setSort] = useState({ name: sortBy ?? "", down: true });
  const [limit, setLimit] = useState(PAGE);
  if (rows.length === 0) return <p class="faint">{empty}</p>;
  const column = columns.find((each) => each.name === sort.name && each.order);
  let sorted = rows;
  if (column?.order) {
    const order = column.order;
    const sign = sort.down ? -1 : 1;
    sorted = rows.map((row) => ({ row, by: order(row) }))
      .sort((a, b) => (a.by < b.by ? -sign : a.by > b.by ? sign : 0))
      .map((each) => each.row);
  }
  const choose = (name: string) =>
    setSort((last) => ({ name, down: last.name === name ? !last.down : true }));
  return (
    <div class="table" role="region" aria-label={caption} tabIndex={0}>
      <table {...(stack ? { class: "stack", role: "table" } : {})}>
        <caption class="unseen">{caption}</caption>
        <thead {...(stack ? { role: "rowgroup" } : {})}>
          <tr {...(stack ? { role: "row" } : {})}>
            {columns.map((each) => (
              <th key={each.name} scope="col" class={classOf(each)} {...(stack ? { role: "columnheader" } : {})}
                  {...(each.order && each === column
                    ? { "aria-sort": sort.down ? "descending" as const : "ascending" as const } : {})}>
                {each.order ? (
                  <button type="button" onClick={() => choose(each.name)}>
                    {each.name}
                    <span class="arrow" aria-hidden="true">{each === column ? (sort.down ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : each.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody {...(stack ? { role: "rowgroup" } : {})}>
          {sorted.slice(0, limit).map((row) => (
            <tr key={rowKey(row)} {...(stack ? { role: "row" } : {})}>
              {columns.map((each) => (
                <td key={each.name} class={classOf(each)} data-name={each.name} {...(stack ? { role: "cell" } : {})}>
                  {stack ? <div class="cell">{each.cell(row)}</div> : each.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > limit ? (
        <p class="more">
          {limit} of {rows.length} rows.{" "}
          <button type="button" onClick={() => setLimit(limit + PAGE)}>Show {Math.min(PAGE, rows.length - limit)} more</button>
        </p>
      ) : null}
    </div>
  );
}

function classOf<T>(column: Column<T>): string {
  return [column.right ? "right" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ");
}

/** Facts about an object: pairs of a name and a value. Those without a value are left out. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts wide-facts">
      {facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Section({ title, children, id }: { title: string; children: ComponentChildren; id?: string }) {
  return (
    <section {...(id ? { id } : {})} class="card">
      <h2>{title}</h2>
      {children}
    </section>
  );
}

export function Gone({ what }: { what: string }) {
  return (
    <section class="card">
      <h1>{what}</h1>
      <p>It is not there now: it has ended, or you may not see it. The events may tell more.</p>
      <p><a href={hrefs.events}>Events</a> · <a href={hrefs.home}>Memory</a></p>
    </section>
  );
}
