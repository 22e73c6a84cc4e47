"use strict";
// The page Read: the computation as one column.

import { html } from "./preact.js";
import { getJson, route, useLoad } from "./api.js";
import { Num, Panel, Waiting } from "./parts.js";

export const page = { name: "read", title: "Read", needs: "trace", Page };

function Page({ view, a }) {
  const read = useLoad((signal) => getJson(route(`api/t/${a.id}/read`, { pos: view.pos }), signal), [a.id, view.pos]);
  return html`<${Panel} title="The computation, step by step" code=${a.code} not="what the numbers of other positions are.">
    <${Waiting} of=${read} />
    ${read.value?.steps.map((step) => html`<p><code>${step.name}</code> ${step.values.map((x, k) => html`<${Num} name=${`${step.name}.${k}`} value=${x} /> `)}</p>`)}
  <//>`;
}
