"use strict";
// The page Training.

import { html } from "./preact.js";

export const page = { name: "training", title: "Training", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
