"use strict";
// The page Attention.

import { html } from "./preact.js";

export const page = { name: "attention", title: "Attention", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
