// SPDX-License-Identifier: Apache-2.0
// The connection to gpumem-web: login, the stream of messages, and connecting anew.
import { EventParser, type ServerEvent } from "./sse";
import type { Store } from "./store";
import type { Change, EventRecord, History, Me, NodeOverview, Peer, Snapshot } from "./wire";

const KEY = "gpumem-web-key";
// gpumem-web sends something each 5 s. After this long without it the connection counts as lost.
const SILENCE_MS = 20_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const LOGIN_NEEDED =
  "This page shows what a user of the node may see, and has to know which one you are.";

class Unauthenticated extends Error {}

function key(): string | null {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // storage is turned off
  }
}

function headers(): Record<string, string> {
  const value = key();
  return value ? { Authorization: `Bearer ${value}` } : {};
}

async function refuse(answer: Response): Promise<never> {
  let message = `gpumem-web answered with status ${answer.status}`;
  try {
    const body = (await answer.json()) as { error?: { message?: string } };
    if (typeof body.error?.message === "string") message = body.error.message;
  } catch {
    // not JSON, such as a proxy's page
  }
  if (answer.status === 401) throw new Unauthenticated(message);
  throw new Error(message);
}

// Returns the address of a call. Without the page's user and password, if its address has them:
// fetch() refuses those.
const addressOf = (call: string) => new URL(`api/v1/${call}`, location.origin + location.pathname);

async function get<T>(path: string): Promise<T> {
  const answer = await fetch(addressOf(path), {
    headers: headers(), cache: "no-store", signal: AbortSignal.timeout(15_000),
  });
  if (!answer.ok) return refuse(answer);
  return (await answer.json()) as T;
}

/** Returns the totals of this node. */
export function fetchOverview(): Promise<NodeOverview> {
  return get<NodeOverview>("overview");
}

export function fetchPeers(): Promise<Peer[]> {
  return get<Peer[]>("peers");
}

/** Returns the last hour of tenants on a device; of all tenants if none is named. */
export function fetchHistory(device: string, tenants: string[]): Promise<History> {
  const query = new URLSearchParams({ device });
  for (const each of tenants.slice(0, 16)) query.append("tenant", each);
  return get<History>(`history?${query.toString()}`);
}

/** Takes a login link's token out of the address, and exchanges it for a key. */
export async function login(): Promise<void> {
  const found = /^#login=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + location.search);
  const answer = await fetch(addressOf("login"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token: found[1] }),
  });
  if (!answer.ok) return refuse(answer);
  const body = (await answer.json()) as { key: string };
  sessionStorage.setItem(KEY, body.key);
}

export class Stream {
  private pauseMs = FIRST_PAUSE_MS;
  private wake: (() => void) | null = null;

  constructor(private readonly store: Store) {}

  /** Reads messages into the store until the page ends, or a login is needed. */
  async run(): Promise<void> {
    try {
      await login();
    } catch (error) {
      // A link that was used before: the key of this tab may still be good.
      if (!key()) return this.needLogin(String((error as Error).message));
    }
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.hurry();
    });
    for (;;) {
      try {
        await this.readOnce();
        this.lost("gpumem-web closed the connection");
      } catch (error) {
        if (error instanceof Unauthenticated) return this.needLogin(error.message);
        this.lost((error as Error).message);
      }
      await this.pause();
    }
  }

  private async readOnce(): Promise<void> {
    const abort = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => abort.abort(), SILENCE_MS);
    };
    heard();
    try {
      const answer = await fetch(addressOf("stream"), {
        headers: { ...headers(), Accept: "text/event-stream" },
        cache: "no-store",
        signal: abort.signal,
      });
      if (!answer.ok || !answer.body) return await refuse(answer);
      get<Me>("me").then((me) => this.store.setMe(me), () => undefined);
      const parser = new EventParser((event) => this.take(event));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard();
        parser.push(value);
      }
    } catch (error) {
      throw abort.signal.aborted ? new Error("gpumem-web sends nothing any more") : error;
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  private take({ event, data }: ServerEvent): void {
    const message: unknown = JSON.parse(data);
    this.pauseMs = FIRST_PAUSE_MS;
    switch (event) {
      case "snapshot":
        return this.store.applySnapshot(message as Snapshot);
      case "change":
        return this.store.applyChange(message as Change);
      case "tick":
        return this.store.applyTick((message as { time_ms: number }).time_ms);
      case "event":
        return this.store.addEvent(message as EventRecord);
      case "daemon": {
        const told = message as { state: string; since_ms?: number; message?: string };
        if (told.state !== "lost") return; // a snapshot follows
        return this.store.setLink({
          state: "daemon-lost",
          sinceMs: told.since_ms ?? Date.now(),
          message: told.message ?? "",
        });
      }
      default:
        return; // of a later gpumem-web
    }
  }

  private lost(message: string): void {
    if (this.store.link.state === "web-lost") return;
    this.store.setLink({ state: "web-lost", sinceMs: Date.now(), message });
  }

  private needLogin(message: string): void {
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // nothing was kept
    }
    this.store.setLink({ state: "login", message: message || LOGIN_NEEDED });
  }

  private pause(): Promise<void> {
    // Pages that lost the same gpumem-web do not come back in the same instant.
    const wait = this.pauseMs * (0.75 + Math.random() / 2);
    this.pauseMs = Math.min(this.pauseMs * 2, LONGEST_PAUSE_MS);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private hurry(): void {
    this.pauseMs = FIRST_PAUSE_MS;
    this.wake?.();
  }
}
