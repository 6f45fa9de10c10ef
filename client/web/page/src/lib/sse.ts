// SPDX-License-Identifier: Apache-2.0
// Server-sent events out of a byte stream. The page reads them by fetch(), because EventSource
// cannot send the login's key.

export interface ServerEvent {
  event: string;
  data: string;
}

// Longer messages than this are no messages of gpumem-web.
const MAX_CHARACTERS = 256 * 1024 * 1024;

/** Cuts text into events. Keeps the rest until more text comes. */
export class EventParser {
  private parts: string[] = [];
  private held = 0;
  private event = "";
  private data: string[] = [];

  constructor(private readonly give: (event: ServerEvent) => void) {}

  push(text: string): void {
    let from = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
      this.parts.push(text.slice(from, end));
      const line = this.parts.length === 1 ? this.parts[0]! : this.parts.join("");
      this.parts = [];
      this.held = 0;
      from = end + 1;
      this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
    }
    if (from < text.length) {
      this.parts.push(text.slice(from));
      this.held += text.length - from;
      if (this.held > MAX_CHARACTERS) throw new Error("a message without an end");
    }
  }

  private line(line: string): void {
    if (line === "") {
      if (this.data.length > 0) {
        this.give({ event: this.event || "message", data: this.data.join("\n") });
      }
      this.event = "";
      this.data = [];
      return;
    }
    if (line.startsWith(":")) return; // a comment, which keeps the connection alive
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.event = value;
    if (field === "data") this.data.push(value);
  }
}
