"use strict";
// The page Circuits.

import { html } from "./preact.js";

export const page = { name: "circuits", title: "Circuits", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
