// SPDX-License-Identifier: Apache-2.0
// The search box: a list of objects below it, to choose from by keys or by pointing.
import { useEffect, useRef, useState } from "preact/hooks";
import { find } from "../lib/find";
import { store } from "../lib/instance";

export function Search() {
  const [typed, setTyped] = useState("");
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  const found = open ? find(store, typed) : [];
  const chosen = Math.min(at, found.length - 1);

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      event.preventDefault();
      input.current?.focus();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);

  const go = (href: string) => {
    location.hash = href;
    setOpen(false);
    setTyped("");
    input.current?.blur();
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (found.length === 0) return;
      const step = event.key === "ArrowDown" ? 1 : -1;
      setAt((chosen + step + found.length) % found.length);
    } else if (event.key === "Enter") {
      const object = found[chosen];
      if (object) go(object.href);
    } else if (event.key === "Escape") {
      setOpen(false);
    }
  };
  const isOpen = open && typed.trim() !== "";
  return (
    <div class="search">
      <input
        ref={input} type="search" role="combobox" list={undefined} placeholder="Search ( / )" autocomplete="off" spellcheck={false}
        aria-label="Search tenants, sessions, publications, segments and devices"
        aria-expanded={isOpen && found.length > 0} aria-controls="found" aria-autocomplete="list"
        {...(isOpen && found.length > 0 ? { "aria-activedescendant": `found-${chosen}` } : {})}
        value={typed} maxLength={200}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          setOpen(true);
          setAt(0);
        }}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={onKey}
      />
      <ul id="found" role="listbox" aria-label="Objects found" class="found" hidden={!isOpen || found.length === 0}>
        {found.map((each, i) => (
          <li key={each.href} id={`found-${i}`} role="option" aria-selected={i === chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                go(each.href);
              }}>
            <span class="eyebrow">{each.kind}</span>
            <span>{each.title}</span>
            <span class="faint">{each.more}</span>
          </li>
        ))}
      </ul>
      {isOpen && found.length === 0 ? <p class="found nothing" role="status">Nothing has that name or number.</p> : null}
    </div>
  );
}
