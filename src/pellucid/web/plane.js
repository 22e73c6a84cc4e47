// Eigenvalues as points.

import { html, useRef } from "./preact.js";
import { three, useWidth } from "./parts.js";
import { largest } from "./charts.js";
import { Canvas } from "./matrix.js";

/** Points in the complex plane, with the axes; to the right is copying. */
export function Plane({ points }) {
  const box = useRef(),
    wide = Math.min(360, useWidth(box, 320)),
    high = 200;
  const draw = (pen, ink) => {
    const most = largest(points.flat()) * 1.1;
    pen.strokeStyle = ink.line;
    pen.strokeRect(-1, high / 2, wide + 2, high);
    pen.strokeRect(wide / 2, -1, wide, high + 2);
    pen.globalAlpha = 0.75;
    for (const [re, im] of points) {
      pen.fillStyle = re < 0 ? ink.negative : ink.positive;
      pen.beginPath();
      pen.arc(wide / 2 + (re / most) * (wide / 2 - 8), high / 2 - (im / most) * (high / 2 - 8), 3.2, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.fillStyle = ink.quiet;
    pen.textAlign = "right";
    pen.fillText(three(most / 1.1), wide - 4, high / 2 - 9);
    pen.textAlign = "left";
    pen.fillText(`\u2212${three(most / 1.1)}`, 4, high / 2 - 9);
  };
  return html`<figure class="drawn" ref=${box}><${Canvas} width=${wide} height=${high} draw=${draw} label="Eigenvalues in the complex plane" /></figure>`;
}
