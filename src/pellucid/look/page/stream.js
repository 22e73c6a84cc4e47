"use strict";
// The page Stream.

import { html } from "./preact.js";

export const page = { name: "stream", title: "Stream", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
