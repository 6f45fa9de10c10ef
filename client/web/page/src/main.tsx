// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import { store } from "./lib/instance";
import { Stream } from "./lib/stream";
import { startTheme } from "./lib/theme";
import { App } from "./views/app";

startTheme();
// A login link that is opened in a tab of this page changes the fragment alone.
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#login=")) location.reload();
});
void new Stream(store).run();
render(<App />, document.getElementById("app")!);
