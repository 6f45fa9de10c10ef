// SPDX-License-Identifier: Apache-2.0
// The last hour as a chart: one tenant with its limit and guarantee, or the biggest of a device.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { formatBytes, formatClock, plural, shown } from "../lib/format";
import { store } from "../lib/instance";
import { isOthers, parentOf, placeOf, usageOn } from "../lib/model";
import { coloursOf, mix } from "../lib/palette";
import { fetchHistory } from "../lib/stream";
import { HOUR_MS, Timeline } from "../lib/timeline";
import { useDark } from "../lib/theme";
import { Bytes, Table, TenantLink } from "./parts";

const BIGGEST = 7;
const REDRAW_MS = 1000;
const LEAST_SPAN_S = 300; // that a chart shows, however short the record is

interface Curve {
  label: string;
  values: number[]; // as told
  drawn: number[]; // as drawn: sums of those below, where areas stand on each other
  stroke: string;
  fill?: string;
  dash?: number[];
  width: number;
}

// Tenants that stand side by side: those above contain those under them.
interface Chosen {
  shown: string[];
  left: number;
}

function topmost(timeline: Timeline): Chosen {
  const nested = [...store.tenants.values()].some((each) => store.tenants.has(parentOf(each)));
  let left = 0;
  const names = [...timeline.series.keys()].filter((name) => {
    const tenant = store.tenants.get(name);
    if (tenant) return !store.tenants.has(parentOf(tenant));
    if (nested) ++left; // it has ended, and whether it was under another is not known any more
    return !nested;
  });
  return { shown: names, left };
}

function stackedCurves(timeline: Timeline, names: string[], moments: number[], dark: boolean): Curve[] {
  const order = names.map((name) => ({ name, peak: timeline.peak(name) })).sort((a, b) => b.peak - a.peak);
  const biggest = order.slice(0, BIGGEST).map((each) => each.name);
  const rest = order.slice(BIGGEST);
  const curves: Curve[] = biggest.map((name) => {
    const colours = coloursOf(placeOf(store, name), dark);
    return { label: shown(name), values: timeline.values(name, "charged", moments), drawn: [],
             stroke: edge(colours.fill, dark), fill: colours.fill, width: 1 };
  });
  if (rest.length > 0) {
    const values = moments.map(() => 0);
    for (const each of rest) timeline.add(each.name, "charged", moments, values);
    const colours = coloursOf(-1, dark);
    curves.push({ label: `${rest.length} more`, values, drawn: [], stroke: edge(colours.fill, dark),
                  fill: colours.fill, width: 1 });
  }
  const sum = moments.map(() => 0);
  for (const curve of curves) {
    curve.drawn = curve.values.map((value, i) => (sum[i] = sum[i]! + value));
  }
  return curves.reverse(); // the highest sum first: the lower ones cover it
}

const edge = (fill: string, dark: boolean) => mix(fill, dark ? "#ffffff" : "#000000", 0.75);

function tenantCurves(timeline: Timeline, name: string, moments: number[], dark: boolean): Curve[] {
  const colours = coloursOf(placeOf(store, name), dark);
  const curve = (label: string, field: Parameters<Timeline["values"]>[1], more: Partial<Curve>): Curve => {
    const values = timeline.values(name, field, moments);
    return { label, values, drawn: values, stroke: edge(colours.fill, dark), width: 1, ...more };
  };
  const curves = [
    curve("charged", "charged", { fill: colours.pale }),
    curve("leased", "leased", { fill: colours.fill }),
    curve("limit", "limit", { stroke: dark ? "#ff9d8a" : "#b3261e", width: 2, dash: [8, 5] }),
  ];
  if (timeline.peak(name, "guarantee") > 0) {
    curves.push(curve("guarantee", "guarantee", { stroke: dark ? "#8fd0ff" : "#0b5394", width: 2, dash: [2, 4] }));
  }
  if (timeline.peak(name, "waiting") > 0) {
    curves.push(curve("waits for", "waiting", { stroke: dark ? "#ffd479" : "#7a4b00", width: 1.5 }));
  }
  return curves;
}

const BINARY_STEPS = Array.from({ length: 60 }, (_, i) => 2 ** i);
const stepped = uPlot.paths.stepped!({ align: 1 });

function options(curves: Curve[], width: number, height: number, top: number, dark: boolean): uPlot.Options {
  const text = dark ? "#b7c0cb" : "#46505d";
  const grid = dark ? "#2a313a" : "#e3e7ec";
  const font = '12px system-ui, "DejaVu Sans", sans-serif';
  const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  return {
    width, height,
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: {
      x: { time: true, range: (_plot, min, max) => [Math.min(min, max - LEAST_SPAN_S), max] },
      y: { range: () => [0, top] },
    },
    axes: [
      { ...axis, space: 80,
        values: (_plot, splits, _axis, _space, step) =>
          splits.map((each) => formatClock(each * 1000).slice(0, step < 60 ? 8 : 5)) },
      { ...axis, size: 72, incrs: BINARY_STEPS, space: 26,
        values: (_plot, splits) => splits.map((each) => formatBytes(each).replace(/\.00/, "")) },
    ],
    series: [
      { label: "at", value: (_plot, value) => (value ? formatClock(value * 1000) : "now") },
      ...curves.map((curve): uPlot.Series => ({
        label: curve.label,
        stroke: curve.stroke,
        width: curve.width,
        points: { show: false },
        paths: stepped,
        ...(curve.fill ? { fill: curve.fill } : {}),
        ...(curve.dash ? { dash: curve.dash } : {}),
        value: (_plot, _value, _series, index) =>
          formatBytes(index === null || index === undefined ? curve.values.at(-1) : curve.values[index]),
      })),
    ],
  };
}

interface Drawn {
  curves: Curve[];
  moments: number[];
  top: number;
}

function compute(timeline: Timeline, tenant: string | undefined, dark: boolean, chosen: Chosen): Drawn {
  const now = store.nowMs();
  const moments = timeline.moments(chosen.shown, now);
  const curves = tenant !== undefined ? tenantCurves(timeline, tenant, moments, dark)
                                      : stackedCurves(timeline, chosen.shown, moments, dark);
  const capacity = store.devices.get(timeline.device)?.capacity_bytes ?? 0;
  const highest = curves.reduce((most, curve) => Math.max(most, ...curve.drawn), 0);
  const top = (tenant !== undefined ? highest * 1.06 : Math.max(capacity, highest)) || 1;
  return { curves, moments, top };
}

function useTimeline(device: string, tenant: string | undefined): { timeline: Timeline; error: string; version: number } {
  const held = useRef<Timeline | null>(null);
  if (held.current?.device !== device) held.current = new Timeline(device);
  const timeline = held.current;
  const [error, setError] = useState("");
  const [version, setVersion] = useState(0);
  useEffect(() => {
    let here = true;
    let timer = 0;
    // The record has no sum of the others, so the changes do not continue it either.
    const isShown = (name: string) => (tenant === undefined ? !isOthers(name) : name === tenant);
    const soon = () => {
      if (!timer) {
        timer = window.setTimeout(() => {
          timer = 0;
          setVersion((count) => count + 1);
        }, REDRAW_MS);
      }
    };
    const load = () => {
      fetchHistory(device, tenant === undefined ? [] : [tenant]).then(
        (history) => {
          if (!here) return;
          timeline.load(history);
          setError("");
          setVersion((count) => count + 1);
        },
        (reason: unknown) => here && setError(String((reason as Error).message)));
    };
    load();
    const stop = store.onChange((change) => {
      if (change === null) return load();
      for (const each of change.tenants?.set ?? []) {
        if (isShown(each.usage.tenant)) timeline.note(each.usage.tenant, change.time_ms, usageOn(each, device));
      }
      for (const name of change.tenants?.gone ?? []) {
        if (isShown(String(name))) timeline.note(String(name), change.time_ms, undefined);
      }
      soon();
    });
    // The hour moves on while nothing changes.
    const slide = window.setInterval(() => {
      timeline.trim(store.nowMs());
      setVersion((count) => count + 1);
    }, 10_000);
    return () => {
      here = false;
      stop();
      clearTimeout(timer);
      clearInterval(slide);
    };
  }, [device, tenant]);
  return { timeline, error, version };
}

export function TimelineChart({ device, tenant }: { device: string; tenant?: string }) {
  const { timeline, error, version } = useTimeline(device, tenant);
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<{ chart: uPlot; labels: string; drawn: Drawn } | null>(null);
  const [width, setWidth] = useState(0);
  const dark = useDark();
  const chosen = useMemo(() => (tenant !== undefined ? { shown: [tenant], left: 0 } : topmost(timeline)),
                         [timeline, version, tenant]);

  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(Math.floor(box.current?.clientWidth ?? 0)));
    if (box.current) observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current?.chart.destroy();
      plot.current = null;
    };
  }, [device, tenant]);

  useEffect(() => {
    if (!box.current || width < 50 || !timeline.loaded) return;
    const drawn = compute(timeline, tenant, dark, chosen);
    const data = [drawn.moments.map((each) => each / 1000), ...drawn.curves.map((each) => each.drawn)];
    const labels = JSON.stringify([drawn.curves.map((each) => each.label), width, dark, drawn.top]);
    const last = plot.current;
    if (last && last.labels === labels) {
      drawn.curves.forEach((curve, i) => Object.assign(last.drawn.curves[i]!, curve));
      last.chart.setData(data as uPlot.AlignedData);
      return;
    }
    last?.chart.destroy();
    const height = width < 500 ? 200 : 240;
    const chart = new uPlot(options(drawn.curves, width, height, drawn.top, dark),
                            data as uPlot.AlignedData, box.current);
    plot.current = { chart, labels, drawn };
  }, [timeline, version, width, dark, tenant]);

  const rows = useMemo(
    () => chosen.shown.map((name) => ({ name, now: timeline.last(name), peak: timeline.peak(name) }))
      .sort((a, b) => b.peak - a.peak),
    [chosen]);
  const left = chosen.left;
  return (
    <div class="timeline">
      <div ref={box} role="img" aria-label={
        `Chart of the last hour: ${rows.slice(0, 3).map((each) =>
          `${shown(each.name)} ${formatBytes(each.now)} now, ${formatBytes(each.peak)} at most`).join("; ")}`
      } />
      {error ? <p class="faint">The last hour cannot be shown: {error}</p> : null}
      {!timeline.loaded && !error ? <p class="faint">Reading the last hour…</p> : null}
      {timeline.loaded && timeline.sinceMs > store.nowMs() - HOUR_MS + 60_000
        ? <p class="faint">The daemon's record begins at {formatClock(timeline.sinceMs)}.</p> : null}
      {chosen.shown.some((each) => timeline.series.get(each)?.cut)
        ? <p class="faint">The daemon has dropped older points, for want of room.</p> : null}
      {tenant === undefined && store.sees !== "all"
        ? <p class="faint">Memory of tenants that you may not see is not in this chart.</p> : null}
      {left > 0 ? <p class="faint">Without {plural(left, "tenant")} that {left === 1 ? "has" : "have"} ended.</p> : null}
      <details>
        <summary>As a table</summary>
        <Table caption="The last hour by tenant" rows={rows} rowKey={(row) => row.name}
               empty="No tenant had memory here." columns={[
                 { name: "Tenant", cell: (row) => <TenantLink name={row.name} swatch />, order: (row) => row.name },
                 { name: "Now", right: true, cell: (row) => <Bytes of={row.now} />, order: (row) => row.now },
                 { name: "At most", right: true, cell: (row) => <Bytes of={row.peak} />, order: (row) => row.peak },
               ]} />
      </details>
    </div>
  );
}
