// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import { store } from "./lib/instance";
import { Stream } from "./lib/stream";
import { startTheme } from "./lib/theme";
import { App } from "./views/app";

startTheme();
void new Stream(store).run();
render(<App />, document.getElementById("app")!);
