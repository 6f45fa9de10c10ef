// SPDX-License-Identifier: Apache-2.0
// A gpumem-web for tests of the page: serves the bundle and a state that the test changes. By hand:
// node fake_server.mjs [demo|hostile|big|own|idle] [PORT]
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as scenarios from "./scenarios.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const BUNDLE = process.env.GPUMEM_WEB_BUNDLE ?? join(here, "../../client/web/page/bundle");
const TYPES = { "index.html": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8",
                "app.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml" };
const HEADERS = {
  "Content-Security-Policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "no-referrer",
  "X-Frame-Options": "DENY",
  "Cross-Origin-Resource-Policy": "same-origin",
  "Cross-Origin-Opener-Policy": "same-origin",
};

export class FakeServer {
  constructor(state, { login = false, peers = [], port = 0 } = {}) {
    this.state = state;
    this.login = login;
    this.peers = peers;
    this.wantedPort = port;
    this.lost = null;
    this.streams = new Set();
    this.tokens = new Set(["once"]);
    this.keys = new Set();
    this.events = scenarios.eventsOf(state);
    this.files = new Map(Object.keys(TYPES).map((name) => [name, readFileSync(join(BUNDLE, name))]));
  }

  async start() {
    this.server = createServer((request, response) => this.serve(request, response));
    await new Promise((resolve) => this.server.listen(this.wantedPort, "127.0.0.1", resolve));
    this.wantedPort = this.server.address().port;
    this.ticker = setInterval(() => this.send("tick", { time_ms: Date.now() }), 5000);
    return this;
  }

  get url() {
    return `http://127.0.0.1:${this.wantedPort}/`;
  }

  /** Ends as a program that is killed: all connections close. */
  async stop() {
    clearInterval(this.ticker);
    for (const stream of this.streams) stream.destroy();
    this.streams.clear();
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  send(event, data) {
    for (const stream of this.streams) this.write(stream, event, data);
  }

  write(stream, event, data) {
    stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  /** Sends a change, and keeps the state up to date for those who come later. */
  change(lists) {
    const keys = { devices: (x) => x.device_uuid, tenants: (x) => x.usage.tenant, sessions: (x) => String(x.session_id),
                   segments: (x) => String(x.segment_id), leases: (x) => String(x.lease_id),
                   published: (x) => `${x.tenant}/${x.name}/${x.version}`, publications: (x) => `${x.tenant}/${x.name}` };
    const change = { number: ++this.state.number, time_ms: Date.now(), ...lists };
    for (const [list, what] of Object.entries(lists)) {
      if (!keys[list]) {
        this.state[list] = what;
        continue;
      }
      const map = new Map(this.state[list].map((each) => [keys[list](each), each]));
      for (const key of what.gone ?? []) map.delete(String(key));
      for (const each of what.set ?? []) map.set(keys[list](each), each);
      this.state[list] = [...map.values()];
    }
    this.send("change", change);
  }

  addEvent(record) {
    const whole = { number: this.events.length + 1, time_ms: Date.now(), ...record };
    this.events.push(whole);
    this.send("event", whole);
  }

  loseDaemon(message = "the connection to gpumemd has ended") {
    this.lost = { state: "lost", since_ms: Date.now(), message };
    this.send("daemon", this.lost);
  }

  /** The daemon is back, with another state if there is one. */
  daemonBack(state = this.state) {
    this.lost = null;
    this.state = { ...state, number: this.state.number + 1, time_ms: Date.now() };
    this.send("daemon", { state: "ok" });
    this.send("snapshot", this.state);
  }

  serve(request, response) {
    const url = new URL(request.url, this.url);
    for (const [name, value] of Object.entries(HEADERS)) response.setHeader(name, value);
    const file = url.pathname === "/" ? "index.html" : url.pathname.slice(1);
    if (TYPES[file]) {
      response.setHeader("Content-Type", TYPES[file]);
      response.end(this.files.get(file));
      return;
    }
    response.setHeader("Cache-Control", "no-store");
    if (!url.pathname.startsWith("/api/v1/")) return this.json(response, 404, { error: { code: "NOT_FOUND", message: "no such page" } });
    const call = url.pathname.slice("/api/v1/".length);
    if (call === "login") return this.logIn(request, response);
    if (this.login && !this.keys.has((request.headers.authorization ?? "").replace(/^Bearer /, ""))) {
      return this.json(response, 401, { error: { code: "UNAUTHENTICATED", message: "Nobody is logged in here." } });
    }
    switch (call) {
      case "me":
        return this.json(response, 200, { uid: 1000, user: "alice", sees: this.state.viewer.sees === "all" ? "all" : "some", node: "node-17", version: "0.5.0" });
      case "snapshot":
        return this.lost ? this.json(response, 503, { error: { code: "UNAVAILABLE", message: this.lost.message } })
                         : this.json(response, 200, this.state);
      case "history": {
        const history = scenarios.historyOf(this.state);
        const device = url.searchParams.get("device");
        const tenants = url.searchParams.getAll("tenant");
        history.series = history.series.filter((each) => (!device || each.device_uuid === device) &&
                                                         (tenants.length === 0 || tenants.includes(each.tenant)));
        return this.json(response, 200, history);
      }
      case "overview":
        return this.json(response, 200, this.overview());
      case "peers":
        return this.json(response, 200, this.peers);
      case "stream":
        return this.stream(response);
      default:
        return this.json(response, 404, { error: { code: "NOT_FOUND", message: "no such call" } });
    }
  }

  overview() {
    const { devices, tenants, sessions, waiting } = this.state;
    if (this.lost) return { node: "node-17", daemon: "lost" };
    return { node: "node-17", version: "0.5.0", daemon: "ok", tenants: tenants.length, sessions: sessions.length, waiting: waiting.length,
             devices: devices.map(({ index, device_uuid, name, capacity_bytes, charged_bytes }) => ({ index, uuid: device_uuid, name, capacity_bytes, charged_bytes: charged_bytes ?? 0 })) };
  }

  logIn(request, response) {
    let body = "";
    request.on("data", (part) => {
      body += part;
    });
    request.on("end", () => {
      const { token } = JSON.parse(body);
      if (!this.tokens.delete(token)) return this.json(response, 401, { error: { code: "UNAUTHENTICATED", message: "The link was used, or is too old." } });
      const key = `key-${Math.random().toString(36).slice(2)}`;
      this.keys.add(key);
      return this.json(response, 200, { key });
    });
  }

  stream(response) {
    response.setHeader("Content-Type", "text/event-stream");
    response.writeHead(200);
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
    if (this.lost) this.write(response, "daemon", this.lost);
    else this.write(response, "snapshot", { ...this.state, time_ms: Date.now() });
    for (const each of this.events.slice(-200)) this.write(response, "event", each);
  }

  json(response, status, data) {
    response.statusCode = status;
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify(data));
  }
}

export const PEERS = [
  { url: "https://node-18.example/", state: "ok", seen_ms: Date.now() - 4000,
    overview: { node: "node-18", version: "0.5.0", daemon: "ok", tenants: 1, sessions: 9, waiting: 1,
                devices: [{ index: 0, uuid: "GPU-1", name: "NVIDIA H100 80GB HBM3", capacity_bytes: 80 * scenarios.GIB, charged_bytes: 61 * scenarios.GIB }] } },
  { url: "https://node-19.example/", state: "failed", error: "no connection (Connection refused)", overview: null },
  { url: "https://node-20.example/", state: "failed", error: "it refuses (HTTP 421)", overview: null },
  { url: "https://node-21.example/", state: "failed", error: "it refuses (HTTP 401)", overview: null },
  { url: "unix:/run/gpumem-other/web.sock", state: "ok", seen_ms: Date.now() - 1000,
    overview: { node: "other", daemon: "lost", devices: [] } },
  { url: "javascript:alert(1)", state: "unknown", overview: null },
];

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [, , scenario = "demo", port = "8080"] = process.argv;
  const server = await new FakeServer(scenarios[scenario](), { port: Number(port), peers: PEERS }).start();
  console.log(server.url);
}
