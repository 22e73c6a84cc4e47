// What the page is made of besides common.js: bars, and the key of a ramp.

import { alike, colourOf, follow, make } from "./common.js";

export function scaleBar(low, high, ramp = "amount") {
  const bar = make("i");
  follow(() => {
    const stops = [0, 0.25, 0.5, 0.75, 1].map((x) => colourOf(ramp === "signed" ? 2 * x - 1 : x, ramp).fill);
    bar.style.background = `linear-gradient(90deg, ${stops.join(",")})`;
  });
  return make("span", { class: "scale" }, low, bar, high);
}

/** Rows of label, bar and number: [{name: node, value, text}], signed around the middle where any is negative. A whole bar is
    `most`, 1 for shares, or the largest value. */
export function bars(rows, most = null) {
  const size = most ?? Math.max(...rows.map((r) => Math.abs(r.value)), 1e-12), signed = rows.some((r) => r.value < 0);
  const box = make("div", { class: "bars" }), number = alike(rows.map((r) => r.value));
  for (const row of rows) {
    const width = Math.min(1, Math.abs(row.value) / size) * (signed ? 50 : 100);
    const start = signed ? (row.value < 0 ? 50 - width : 50) : 0;
    const fill = make("div", { class: "fill", style: { left: `${start}%`, width: `${width}%`, background: row.value < 0 ? "var(--negative)" : "var(--positive)" } });
    box.append(make("div", { class: row.wanted ? "name wanted" : "name" }, row.name), make("div", { class: "track" }, fill), make("div", { class: "number" }, row.text ?? number(row.value)));
  }
  return box;
}
