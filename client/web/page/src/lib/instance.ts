// SPDX-License-Identifier: Apache-2.0
// The page's one store, and hooks to follow it.
import { useEffect, useState } from "preact/hooks";
import { Store, type Topic } from "./store";

export const store = new Store();

const LEAST_MS = 200;

/** Calls back after changes of the topics: at once, but not more often than each 200 ms. Returns a
    function that ends it. */
export function follow(topics: readonly Topic[], listener: () => void): () => void {
  let last = -Infinity;
  let timer = 0;
  const call = () => {
    timer = 0;
    last = performance.now();
    listener();
  };
  const stop = store.subscribe((changed) => {
    if (timer || !topics.some((each) => changed.has(each))) return;
    const wait = last + LEAST_MS - performance.now();
    if (wait <= 0) call();
    else timer = window.setTimeout(call, wait);
  });
  return () => {
    stop();
    clearTimeout(timer);
  };
}

/** Renders the component anew after changes of one of the topics. */
export function useTopics(...topics: Topic[]): void {
  const [, setCount] = useState(0);
  useEffect(() => follow(topics, () => setCount((count) => count + 1)), [topics.join()]);
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
