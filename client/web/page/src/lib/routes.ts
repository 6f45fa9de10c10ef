// SPDX-License-Identifier: Apache-2.0
// The permalinks: which object or list the address names.

// Halves of surrogate pairs have no place in an address; encodeURIComponent() throws at them.
const part = (name: string) => encodeURIComponent(name.replace(/\p{Surrogate}/gu, "\ufffd"));

export const hrefs = {
  home: "#/",
  device: (uuid: string) => `#/gpu/${part(uuid)}`,
  tenants: "#/tenants",
  tenant: (name: string) => `#/tenant/${part(name)}`,
  session: (id: number) => `#/session/${id}`,
  segment: (id: number) => `#/segment/${id}`,
  publications: "#/publications",
  publication: (tenant: string, name: string) => `#/publication/${part(tenant)}/${part(name)}`,
  waiting: "#/waiting",
  events: "#/events",
  nodes: "#/nodes",
};

export interface Route {
  view: string; // "" is the first view
  names: string[];
}

/** Returns the route of an address's fragment. Names that are no valid escapes stay as they are. */
export function parseRoute(fragment: string): Route {
  const parts = fragment.replace(/^#\/?/, "").split("/").filter((each) => each !== "");
  const names = parts.slice(1).map((each) => {
    try {
      return decodeURIComponent(each);
    } catch {
      return each;
    }
  });
  return { view: parts[0] ?? "", names };
}
