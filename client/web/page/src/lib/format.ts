// SPDX-License-Identifier: Apache-2.0
// Sizes, ages and names as gpumemctl prints them (client/cli/text/format.cc, common/bytes.cc).
import type { Denial, Device } from "./wire";

const PREFIXES = "KMGTPE";

/** Returns "6.00 GiB": rounded to hundredths, with the unit decided after rounding. */
export function formatBytes(bytes: number | undefined): string {
  const value = bytes ?? 0;
  if (value < 1024) return `${value} B`;
  let prefix = 0;
  let unit = 1024n;
  const exact = BigInt(Math.round(value));
  const hundredths = () => (exact * 100n + unit / 2n) / unit;
  while (hundredths() >= 102400n && prefix + 1 < PREFIXES.length) {
    unit *= 1024n;
    ++prefix;
  }
  const rounded = hundredths();
  const fraction = String(rounded % 100n).padStart(2, "0");
  return `${rounded / 100n}.${fraction} ${PREFIXES[prefix]}iB`;
}

const two = (value: number) => String(value).padStart(2, "0");

/** Returns "850ms", "12s", "3m07s", "2h05m" or "4d03h". */
export function formatAge(milliseconds: number): string {
  const all = Math.max(0, Math.floor(milliseconds));
  const seconds = Math.floor(all / 1000);
  if (seconds === 0) return `${all}ms`;
  if (seconds < 60) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (seconds < 3600) return `${minutes}m${two(seconds % 60)}s`;
  const hours = Math.floor(seconds / 3600);
  if (seconds < 86400) return `${hours}h${two(minutes % 60)}m`;
  return `${Math.floor(seconds / 86400)}d${two(hours % 24)}h`;
}

/** Returns the same for an age that ticks on a page: whole seconds only. */
export function formatTickingAge(milliseconds: number): string {
  return milliseconds < 1000 ? "0s" : formatAge(milliseconds);
}

/** Returns "37%", as printf("%.0f%%") rounds: ties to the even number. */
export function formatPercent(part: number | undefined, whole: number | undefined): string {
  const some = part ?? 0;
  if (!whole) return "-";
  const percent = (100 * some) / whole;
  if (some > 0 && percent < 1) return "<1%";
  if (some < whole && percent > 99) return "99%";
  const down = Math.floor(percent);
  const rest = percent - down;
  const up = rest > 0.5 || (rest === 0.5 && down % 2 === 1);
  return `${down + (up ? 1 : 0)}%`;
}

// Characters without a shape, or that turn the direction of the text around them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/g;

/** Returns a name that a process chose, with each invisible character as an escape, cut if it is long. */
export function shown(text: string | undefined, most = 200): string {
  if (!text) return "";
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}`
                      : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

export const isPinned = (uuid: string) => uuid.startsWith("PINNED-");
export const isTier = (uuid: string) => uuid.startsWith("TIER-");
export const isHostMemory = (uuid: string) => isPinned(uuid) || isTier(uuid);

function shortUuid(devices: Iterable<Device>, uuid: string): string {
  if (isPinned(uuid)) return "PINNED";
  if (isTier(uuid)) return "TIER";
  const first = uuid.indexOf("-");
  const second = first < 0 ? -1 : uuid.indexOf("-", first + 1);
  let length = second < 0 ? uuid.length : second;
  for (const other of devices) {
    if (other.device_uuid === uuid) continue;
    while (length < uuid.length && other.device_uuid.startsWith(uuid.slice(0, length))) ++length;
  }
  return uuid.slice(0, length);
}

/** Returns "0 GPU-8f2b1a30": the device's index and a unique prefix of its UUID. */
export function shortDevice(devices: ReadonlyMap<string, Device>, uuid: string): string {
  const device = devices.get(uuid);
  if (!device) return shown(uuid);
  return `${device.index ?? 0} ${shown(shortUuid(devices.values(), uuid))}`;
}

/** Returns what a newcomer calls the device: "GPU 0", "Pinned host memory", "Host tier". */
export function deviceTitle(device: Device): string {
  if (isPinned(device.device_uuid)) return "Pinned host memory";
  if (isTier(device.device_uuid)) return "Host tier";
  return device.backend === "host" ? `Device ${device.index ?? 0}` : `GPU ${device.index ?? 0}`;
}

/** Returns for what a request waits, in gpumemctl's words (WaitsFor in client/cli/views). */
export function waitsFor(denial: Denial | null | undefined): string {
  if (!denial) return "memory";
  const whose = denial.limited_tenant ? `tenant ${shown(denial.limited_tenant)}'s` : "its own";
  switch (denial.cause) {
    case "device_limit":
      return `${whose} limit of ${formatBytes(denial.limit)}`;
    case "total_limit":
      return `${whose} total limit of ${formatBytes(denial.limit)}`;
    case "max_segments":
      return `${whose} limit of ${denial.limit ?? 0} segments`;
    case "capacity":
      if (!denial.holders?.length) return "memory that others hold";
      return `memory of ${denial.holders
        .map((each) => `${shown(each.tenant)} (${formatBytes(each.used)})`)
        .join(", ")}`;
    case "guarantees":
      return "memory that is not guaranteed to others";
    case "queue":
      return "those before it";
    default:
      return "memory on its way back";
  }
}

/** Returns the help of a denial as a sentence, or a short one where the daemon gave none. */
export function whatHelps(denial: Denial | null | undefined): string {
  const help = shown(denial?.help, 1000);
  if (!help) return "";
  const whole = help.charAt(0).toUpperCase() + help.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

export function formatClock(milliseconds: number): string {
  const time = new Date(milliseconds);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export function formatMoment(milliseconds: number): string {
  const time = new Date(milliseconds);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${formatClock(milliseconds)}`;
}

export const plural = (count: number, noun: string) => `${count} ${noun}${count === 1 ? "" : "s"}`;
