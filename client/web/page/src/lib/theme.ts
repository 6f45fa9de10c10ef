// SPDX-License-Identifier: Apache-2.0
// Light and dark: as the system has it, or as chosen here.
import { useEffect, useState } from "preact/hooks";

export type Choice = "auto" | "light" | "dark";
const KEY = "gpumem-web-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

let choice: Choice = "auto";
try {
  const kept = localStorage.getItem(KEY);
  if (kept === "light" || kept === "dark") choice = kept;
} catch {
  // storage is turned off: the choice lasts as long as the page
}

export const chosenTheme = () => choice;
export const isDark = () => choice === "dark" || (choice === "auto" && system.matches);

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
  for (const listener of [...listeners]) listener();
}

export function startTheme(): void {
  system.addEventListener("change", apply);
  apply();
}

export function chooseTheme(next: Choice): void {
  choice = next;
  try {
    if (next === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // as above
  }
  apply();
}

/** Returns whether the page is dark, and renders anew when that changes. */
export function useDark(): boolean {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const listener = () => setDark(isDark());
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return dark;
}
