// SPDX-License-Identifier: Apache-2.0
// The last hour of a device's tenants: the daemon's history, continued by the changes that the
// page is told of. A point holds until the next one.
import type { DeviceUsage, History } from "./wire";

export const HOUR_MS = 3_600_000;
const LEAST_STEP_MS = 5_000; // between points that are kept of the changes

export const FIELDS = ["charged", "limit", "guarantee", "waiting", "leased"] as const;
export type Field = (typeof FIELDS)[number];

interface Series {
  times: number[]; // grows
  values: Record<Field, number[]>;
  cut: boolean;
}

const emptySeries = (): Series =>
  ({ times: [], cut: false, values: { charged: [], limit: [], guarantee: [], waiting: [], leased: [] } });

export class Timeline {
  readonly series = new Map<string, Series>();
  sinceMs = 0; // when the daemon's record begins
  loaded = false;

  constructor(readonly device: string) {}

  load(history: History): void {
    this.series.clear();
    this.loaded = true;
    this.sinceMs = history.since_ms;
    for (const each of history.series ?? []) {
      if (each.device_uuid !== this.device) continue;
      const series = emptySeries();
      series.cut = each.cut ?? false;
      for (const point of each.points ?? []) {
        series.times.push(point[0] ?? 0);
        FIELDS.forEach((field, i) => series.values[field].push(point[i + 1] ?? 0));
      }
      this.series.set(each.tenant, series);
    }
  }

  /** Continues a tenant. A point that comes soon after another replaces it, so that an hour of
      changes needs no more room than the daemon's record. */
  note(tenant: string, timeMs: number, usage: DeviceUsage | undefined): void {
    let series = this.series.get(tenant);
    if (!series) {
      if (!usage?.charged_bytes && !usage?.waiting_bytes) return;
      series = emptySeries();
      this.series.set(tenant, series);
    }
    const now: Record<Field, number> = {
      charged: usage?.charged_bytes ?? 0,
      limit: usage?.limit_bytes ?? 0,
      guarantee: usage?.guarantee_bytes ?? 0,
      waiting: usage?.waiting_bytes ?? 0,
      leased: usage?.leased_bytes ?? 0,
    };
    const last = series.times.length - 1;
    if (last >= 0 && FIELDS.every((field) => series.values[field][last] === now[field])) return;
    const before = series.times[last - 1];
    const replaces = before !== undefined && timeMs - before < LEAST_STEP_MS;
    if (replaces) series.times[last] = timeMs;
    else series.times.push(timeMs);
    for (const field of FIELDS) {
      if (replaces) series.values[field][last] = now[field];
      else series.values[field].push(now[field]);
    }
  }

  /** Drops points older than an hour, but for the one that holds at that time. */
  trim(nowMs: number): void {
    for (const [tenant, series] of this.series) {
      let old = 0;
      while (old + 1 < series.times.length && series.times[old + 1]! <= nowMs - HOUR_MS) ++old;
      if (old > 0) {
        series.times.splice(0, old);
        for (const field of FIELDS) series.values[field].splice(0, old);
      }
      const ended = series.times.length === 1 && series.times[0]! <= nowMs - HOUR_MS &&
        series.values.charged[0] === 0 && series.values.waiting[0] === 0;
      if (ended) this.series.delete(tenant);
    }
  }

  /** Returns the highest value of the hour. */
  peak(tenant: string, field: Field = "charged"): number {
    return Math.max(0, ...(this.series.get(tenant)?.values[field] ?? []));
  }

  last(tenant: string, field: Field = "charged"): number {
    return this.series.get(tenant)?.values[field].at(-1) ?? 0;
  }

  /** Returns the moments at which one of the tenants changes, from an hour ago until now. */
  moments(tenants: Iterable<string>, nowMs: number): number[] {
    const from = Math.max(nowMs - HOUR_MS, this.sinceMs);
    const all = new Set<number>([from, nowMs]);
    for (const tenant of tenants) {
      for (const time of this.series.get(tenant)?.times ?? []) {
        if (time > from) all.add(time); // also a little later than now, by another clock
      }
    }
    return [...all].sort((a, b) => a - b);
  }

  /** Adds the tenant's value at each of the moments, which grow, to `sum`. */
  add(tenant: string, field: Field, moments: readonly number[], sum: number[]): void {
    const series = this.series.get(tenant);
    if (!series) return;
    let at = -1;
    moments.forEach((moment, i) => {
      while (at + 1 < series.times.length && series.times[at + 1]! <= moment) ++at;
      if (at >= 0) sum[i] = (sum[i] ?? 0) + (series.values[field][at] ?? 0);
    });
  }

  values(tenant: string, field: Field, moments: readonly number[]): number[] {
    const result = moments.map(() => 0);
    this.add(tenant, field, moments, result);
    return result;
  }
}
