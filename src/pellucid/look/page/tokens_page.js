"use strict";
// The page Tokens: how the text was cut into tokens, and how well each was expected.

import { html } from "./preact.js";

export const page = { name: "tokens", title: "Tokens", Page };

function Page() {
  return html`<section class="panel"><p class="quiet">This page is not built yet.</p></section>`;
}
