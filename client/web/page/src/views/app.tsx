// SPDX-License-Identifier: Apache-2.0
// The page's frame: navigation, search, theme, what was lost, and the view that the address names.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { deviceTitle, formatClock, formatTickingAge, shown } from "../lib/format";
import { store, useSeconds, useTopics } from "../lib/instance";
import { hrefs, parseRoute, type Route } from "../lib/routes";
import { fetchPeers } from "../lib/stream";
import { chooseTheme, chosenTheme, useDark, type Choice } from "../lib/theme";
import { EventsView } from "./events";
import { DeviceView, MemoryView } from "./memory";
import { NodesView } from "./nodes";
import { PublicationsView, PublicationView } from "./publications";
import { Search } from "./search";
import { SegmentView } from "./segments";
import { SessionView } from "./sessions";
import { TenantsView, TenantView } from "./tenants";
import { WaitingView } from "./waiting";

function useRoute(): Route {
  const [fragment, setFragment] = useState(location.hash);
  useEffect(() => {
    const onChange = () => setFragment(location.hash);
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return parseRoute(fragment);
}

function View({ route }: { route: Route }) {
  const [first = "", second = ""] = route.names;
  switch (route.view) {
    case "gpu":
      return <DeviceView uuid={first} key={first} />;
    case "tenants":
      return <TenantsView />;
    case "tenant":
      return <TenantView name={first} key={first} />;
    case "session":
      return <SessionView id={Number(first)} key={first} />;
    case "segment":
      return <SegmentView id={Number(first)} key={first} />;
    case "publications":
      return <PublicationsView />;
    case "publication":
      return <PublicationView tenant={first} name={second} key={`${first}/${second}`} />;
    case "waiting":
      return <WaitingView />;
    case "events":
      return <EventsView />;
    case "nodes":
      return <NodesView />;
    default:
      return <MemoryView />;
  }
}

// A mistake in one view leaves the others usable.
class Guard extends Component<{ children: ComponentChildren }, { failed: string }> {
  override state = { failed: "" };

  static override getDerivedStateFromError(error: unknown) {
    return { failed: String((error as Error)?.message ?? error) };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <section class="card" role="alert">
        <h1>This view failed</h1>
        <p>It is a mistake of the page: {shown(this.state.failed)}. Other views may work.</p>
      </section>
    );
  }
}

// Returns the view's name for the window's title, as text.
function titleOf(route: Route): string {
  const device = store.devices.get(route.names[0] ?? "");
  const names: Record<string, string> = {
    gpu: device ? deviceTitle(device) : "Device", tenants: "Tenants", publications: "Publications",
    waiting: "Queue", events: "Events", nodes: "Nodes",
    tenant: `Tenant ${shown(route.names[0])}`, session: `Session ${shown(route.names[0])}`,
    segment: `Segment ${shown(route.names[0])}`, publication: shown(route.names.join("/")),
  };
  return names[route.view] ?? "Memory";
}

const OF_VIEW: Record<string, string> = {
  "": "", gpu: "", tenant: "tenants", tenants: "tenants", session: "tenants", segment: "tenants",
  publications: "publications", publication: "publications", waiting: "waiting", events: "events",
  nodes: "nodes",
};

function Navigation({ route, peers }: { route: Route; peers: boolean }) {
  useTopics("waiting");
  const entries: [string, string, string][] = [
    ["", hrefs.home, "Memory"],
    ["tenants", hrefs.tenants, "Tenants"],
    ["waiting", hrefs.waiting, "Queue"],
    ["publications", hrefs.publications, "Publications"],
    ["events", hrefs.events, "Events"],
  ];
  if (peers || route.view === "nodes") entries.push(["nodes", hrefs.nodes, "Nodes"]);
  const current = OF_VIEW[route.view] ?? "";
  return (
    <nav aria-label="Views">
      {entries.map(([view, href, name]) => (
        <a key={name} href={href} {...(view === current ? { "aria-current": "page" as const } : {})}>
          {name}
          {view === "waiting" && store.waiting.length > 0 ? <span class="count">{store.waiting.length}</span> : null}
        </a>
      ))}
    </nav>
  );
}

function ThemeSwitch() {
  useDark();
  const order: Choice[] = ["auto", "light", "dark"];
  const now = chosenTheme();
  const next = order[(order.indexOf(now) + 1) % order.length]!;
  const [, setCount] = useState(0);
  return (
    <button type="button" class="theme" title={`Change to ${next}`} onClick={() => {
      chooseTheme(next);
      setCount((count) => count + 1);
    }}>
      Theme: {now}
    </button>
  );
}

function LostBanner() {
  useTopics("link");
  useSeconds();
  const link = store.link;
  if (link.state !== "daemon-lost" && link.state !== "web-lost") return null;
  // gpumemd may also be there, and not admit gpumem-web: the reason tells.
  const daemon = link.state === "daemon-lost";
  return (
    <div class="banner" role="alert">
      <b>{daemon ? "No figures from gpumemd" : "gpumem-web does not answer"}</b> since {formatClock(link.sinceMs)} (<span aria-hidden="true">{formatTickingAge(Date.now() - link.sinceMs)}</span>).{" "}
      {store.loaded ? `The figures are those of ${formatClock(store.timeMs)}. ` : ""}
      The page goes on by itself when {daemon ? "there are figures again" : "it is back"}. {link.message ? <span class="reason">Reason: {shown(link.message, 1000)}</span> : null}
    </div>
  );
}

function LoginView({ message }: { message: string }) {
  return (
    <main id="main" class="login">
      <h1>Log in from the node</h1>
      <p>{shown(message, 1000)}</p>
      <p>On the node, as the user that you are there, run</p>
      <pre tabIndex={0}><code>gpumemctl web</code></pre>
      <p>It prints a link that logs this browser in. The link works once, and for a minute.</p>
    </main>
  );
}

function ViewerNote() {
  useTopics("link", "me");
  if (store.sees === "all") return null;
  const whose = store.sees === "own" ? "your tenants and those of your team" : "your tenants";
  return (
    <p class="note">
      You see {whose}. Memory of others is shown as one sum, "(others)": the node's [privacy] setting says so.
    </p>
  );
}

export function App() {
  useTopics("link", "me");
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const [peers, setPeers] = useState(false);
  const place = `${route.view}/${route.names.join("/")}`;
  const known = useRef(place);

  useEffect(() => {
    document.title = `${titleOf(route)} · gpumem${store.me?.node ? ` · ${shown(store.me.node)}` : ""}`;
    if (known.current === place) return;
    known.current = place;
    scrollTo(0, 0);
    // The focus stays in a box: the user types there.
    if (!(document.activeElement instanceof HTMLInputElement)) main.current?.focus({ preventScroll: true });
  });
  const live = store.link.state === "ok";
  useEffect(() => {
    if (live) fetchPeers().then((told) => setPeers(told.length > 0), () => undefined);
  }, [live]);

  if (store.link.state === "login") return <LoginView message={store.link.message} />;
  const lost = store.link.state === "daemon-lost" || store.link.state === "web-lost";
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        main.current?.focus();
      }}>Go to the figures</a>
      <header>
        <a class="brand" href={hrefs.home}>gpumem</a>
        <span class="node" title="The node">{shown(store.me?.node)}</span>
        <Search />
        <span class={`link ${store.link.state}`} role="status">
          {live ? "live" : lost ? "lost" : "connecting"}
        </span>
        <ThemeSwitch />
      </header>
      <Navigation route={route} peers={peers} />
      <LostBanner />
      <main id="main" ref={main} tabIndex={-1} class={lost && store.loaded ? "stale" : ""}>
        <ViewerNote />
        {store.loaded || route.view === "nodes" ? <Guard key={place}><View route={route} /></Guard> : (
          <h1 class="faint">{lost ? "No figures yet" : "Waiting for the first figures…"}</h1>
        )}
      </main>
      <Footer />
    </>
  );
}

function Footer() {
  useTopics("status", "me");
  const version = store.status.version ?? store.me?.version;
  return (
    <footer>
      <span>gpumemd {shown(version)}</span>
      {store.status.backend ? <span>backend {shown(store.status.backend)}</span> : null}
      {store.status.draining ? <span class="tag warn">draining: nothing new is admitted</span> : null}
      {store.me ? <span>seen as {shown(store.me.user) || `uid ${store.me.uid}`}</span> : null}
      <span>This page only shows; it changes nothing.</span>
    </footer>
  );
}
