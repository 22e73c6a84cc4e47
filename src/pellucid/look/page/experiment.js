"use strict";
// The page Experiment.

import { html } from "./preact.js";

export const page = { name: "experiment", title: "Experiment", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
