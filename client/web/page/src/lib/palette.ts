// SPDX-License-Identifier: Apache-2.0
// Colours of tenants. The light ones have the hues of Paul Tol's "light" scheme, which people with any
// colour vision tell apart; text on them is black. The dark ones are darker by hand, with white text.

export interface Colours {
  fill: string;
  pale: string; // of memory that serves no session now
  text: string;
  paleText: string;
}

const LIGHT = ["#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#44bb99", "#99ddff", "#bbcc33", "#c9a6e0"];
const DARK = ["#2f6aa8", "#a04e26", "#7a6a12", "#a8446a", "#1f7a5c", "#1d7390", "#5b6f14", "#75519c"];
export const GREY = { light: "#c4c9d0", dark: "#4a515c" };
export const GROUND = { light: "#ffffff", dark: "#14171c" };

function channels(colour: string): number[] {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** Returns a mix of two colours; `share` is the first one's. */
export function mix(first: string, second: string, share: number): string {
  const a = channels(first);
  const b = channels(second);
  const mixed = a.map((each, i) => Math.round(each * share + b[i]! * (1 - share)));
  return `#${mixed.map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}

/** Returns the contrast of two colours as WCAG 2 defines it: 1 to 21. */
export function contrast(first: string, second: string): number {
  const luminance = (colour: string) => {
    const [r, g, b] = channels(colour).map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  };
  const [low, high] = [luminance(first), luminance(second)].sort((a, b) => a - b);
  return (high! + 0.05) / (low! + 0.05);
}

export const PALETTE_SIZE = LIGHT.length;
const made = new Map<string, Colours>();

/** Returns the colours of a tenant by its place in the palette; grey for -1. */
export function coloursOf(place: number, dark: boolean): Colours {
  const key = `${place < 0 ? -1 : place % PALETTE_SIZE}${dark}`;
  let colours = made.get(key);
  if (!colours) {
    const theme = dark ? "dark" : "light";
    const fill = place < 0 ? GREY[theme] : (dark ? DARK : LIGHT)[place % PALETTE_SIZE]!;
    const text = dark ? "#ffffff" : "#10141a";
    colours = { fill, pale: mix(fill, GROUND[theme], dark ? 0.42 : 0.38), text, paleText: text };
    made.set(key, colours);
  }
  return colours;
}
