// SPDX-License-Identifier: Apache-2.0
// The page's one store, and hooks to follow it.
import { useEffect, useState } from "preact/hooks";
import { Store, type Topic } from "./store";

export const store = new Store();

/** Renders the component anew after each change of one of the topics. */
export function useTopics(...topics: Topic[]): void {
  const [, setCount] = useState(0);
  useEffect(
    () => store.subscribe((changed) => {
      if (topics.some((each) => changed.has(each))) setCount((count) => count + 1);
    }),
    [topics.join()]);
}

/** Returns a counter that grows each second, for what depends on the time alone. */
export function useSeconds(): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setSeconds((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return seconds;
}
