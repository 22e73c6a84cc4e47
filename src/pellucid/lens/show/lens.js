// Tables of layers by positions on a canvas that draws what can be seen of it: the logit lens, and attribution.

/** The most strips that a long text takes on paper. */
const MOST_STRIPS = 12;

/** A scrolled grid of rows by the prompt's positions. `draw(r, i)` gives {value in [0, 1] or [-1, 1], text}. It opens at the
    chosen position, or at the first token until one is chosen; a position that is chosen elsewhere comes into sight. */
function positionGrid(body, { rows, cellWidth, cellHeight, ramp, draw, say, label, texts = false, atFirst = false }) {
  const n = figure.tokens.length, gutter = Math.min(120, 20 + 7 * Math.max(...rows.map((r) => r.length)));
  // names of columns lie where there is room, and lean where there is less; of columns still narrower two are named
  const leaning = cellWidth <= 30 && cellWidth >= 9, headRow = leaning ? 62 : 22, edge = leaning ? 26 : 0;
  const height = headRow + rows.length * cellHeight;
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": `${label}; arrow keys move between rows and positions` });
  const spacer = make("div", { class: "spacer", style: { width: `${gutter + n * cellWidth + edge}px` } });
  const box = make("div", { class: "wide" }, spacer, canvas), line = make("div", { class: "say", "aria-live": "polite" });
  const strips = make("div", { class: "strips" });
  body.append(make("div", { class: "positions" }, box, strips, line));
  let row = rows.length - 1, hovered = null, told = "", version = 0, revealed = -1;

  const place = (event) => {
    const r = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientX - r.left - gutter + box.scrollLeft) / cellWidth);
    return [within(Math.floor((event.clientY - r.top - headRow) / cellHeight), rows.length), within(i, n)];
  };
  canvas.addEventListener("pointermove", (event) => { hovered = place(event); redraw(); });
  canvas.addEventListener("pointerleave", () => { hovered = null; redraw(); });
  canvas.addEventListener("click", (event) => { const [r, i] = place(event); row = r; choose({ position: i }); });
  box.addEventListener("scroll", redraw);
  const step = (dr, di) => {
    row = within(row + dr, rows.length);
    hovered = null;
    choose({ position: within(chosen() + di, n) });
  };
  const chosen = () => (atFirst && !state.moved ? 0 : state.position);
  function reveal() {
    if (revealed === chosen()) return;
    revealed = chosen();
    const x = gutter + revealed * cellWidth;
    if (x - gutter < box.scrollLeft || x + cellWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = x - box.clientWidth / 2;
  }
  arrows(canvas, { left: () => step(0, -1), right: () => step(0, 1), up: () => step(-1, 0), down: () => step(1, 0) });

  // one pixel for each cell, drawn large: of thousands of positions only colours that changed are worked out again
  let image = null, painted = null;
  function colours() {
    if (painted === ramps) return;
    painted = ramps;
    image = make("canvas", { width: n, height: rows.length });
    const context = image.getContext("2d"), data = context.createImageData(n, rows.length);
    for (let r = 0, k = 0; r < rows.length; r++) {
      for (let i = 0; i < n; i++, k += 4) {
        const [red, green, blue] = rampAt(draw(r, i).value, ramp);
        data.data[k] = red;
        data.data[k + 1] = green;
        data.data[k + 2] = blue;
        data.data[k + 3] = 255;
      }
    }
    context.putImageData(data, 0, 0);
  }

  /** The part of the grid from `left`, `width` pixels wide, onto a canvas; row hr and position hi are marked. */
  function paintPart(canvas, left, width, hr, hi) {
    const context = paint(canvas, width, height), right = width - edge;
    canvas.style.width = `${width}px`;
    const first = Math.floor(left / cellWidth), last = Math.min(n, first + Math.ceil((right - gutter) / cellWidth) + 1);
    const ground = getComputedStyle(body).backgroundColor, x0 = gutter + first * cellWidth - left;
    context.imageSmoothingEnabled = false;
    context.drawImage(image, first, 0, last - first, rows.length, x0, headRow, (last - first) * cellWidth, rows.length * cellHeight);
    context.fillStyle = ground;
    rows.forEach((_, r) => context.fillRect(x0, headRow + (r + 1) * cellHeight - 1, (last - first) * cellWidth, 1));
    if (cellWidth > 8) for (let i = first; i < last; i++) context.fillRect(gutter + (i + 1) * cellWidth - left - 1, headRow, 1, height - headRow);
    context.textBaseline = "middle";
    const mono = getComputedStyle(document.documentElement).getPropertyValue("--mono");
    for (let i = first; i < last; i++) {
      const x = gutter + i * cellWidth - left;
      if (x > right - 1) break;
      const name = marked(figure.tokens[i]), named = i === hi || i === chosen();
      context.font = `${named ? "bold " : ""}12px ${mono}`;
      context.fillStyle = ramps.text;
      if (leaning) {
        context.save();
        context.translate(x + cellWidth / 2, headRow - 5);
        context.rotate(-Math.PI / 2.6);
        context.fillText(clipped(context, name, headRow - 8), 0, 0);
        context.restore();
      } else if (cellWidth > 30) context.fillText(clipped(context, name, cellWidth - 6), x + 4, headRow / 2);
      else if (i === hi) context.fillText(name, Math.max(gutter, Math.min(x, width - context.measureText(name).width - 2)), headRow / 2);
      if (!texts) continue;
      context.font = `12px ${mono}`;
      for (let r = 0; r < rows.length; r++) {
        const { value, text } = draw(r, i);
        context.fillStyle = colourOf(value, ramp).ink;
        context.fillText(clipped(context, text, cellWidth - 8), x + 4, headRow + (r + 0.5) * cellHeight);
      }
    }
    for (const [colour, line] of [[ramps.ground, 4], [ramps.text, 2]]) { // seen on light cells and on dark ones
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(gutter + hi * cellWidth - left, headRow + hr * cellHeight, Math.max(cellWidth - 1, 2), cellHeight - 1);
    }
    context.fillStyle = ground;
    context.fillRect(0, 0, gutter, height);
    context.fillRect(right, headRow, edge, height);
    context.fillStyle = ramps.text;
    context.font = "12px system-ui, sans-serif";
    if (cellHeight >= 12) rows.forEach((name, r) => context.fillText(clipped(context, name, gutter - 8), 0, headRow + (r + 0.5) * cellHeight));
    else context.fillText(clipped(context, rows[hr], gutter - 8), 0, headRow + (hr + 0.5) * cellHeight);
  }

  /** For paper, which does not scroll: the positions in strips below each other. */
  function paintStrips() {
    const columns = Math.floor((box.clientWidth - gutter - edge) / cellWidth), all = Math.ceil(n / columns), count = Math.min(all, MOST_STRIPS);
    strips.replaceChildren(...Array.from({ length: count }, (_, k) => {
      const canvas = make("canvas"), here = Math.min(columns, n - k * columns);
      paintPart(canvas, k * columns * cellWidth, gutter + here * cellWidth + edge, row, chosen());
      return canvas;
    }), ...(count < all ? [make("p", { class: "quiet" }, `Positions 0 to ${count * columns - 1} of ${n}.`)] : []));
  }

  let shown = "";
  function repaint() {
    colours();
    if (printing) return paintStrips();
    reveal();
    const width = Math.min(box.clientWidth, gutter + n * cellWidth + edge), left = box.scrollLeft;
    const [hr, hi] = hovered ?? [row, chosen()], now = `${width} ${left} ${hr} ${hi} ${version} ${ramps.text}`;
    if (now === shown) return;
    shown = now;
    paintPart(canvas, left, width, hr, hi);
    const key = `${hr} ${hi}`;
    if (key !== told) line.replaceChildren(...say(hr, hi));
    told = key;
  }
  follow(repaint);
  return { again: () => { told = ""; painted = null; version++; redraw(); } };
}

panels.lens = async (panel, body, head) => {
  const [top, probability, target, rank, entropy, kl] = await Promise.all(["top", "probability", "target", "rank", "entropy", "kl"].map((name) => unpack(panel[name])));
  const [points, n, k] = panel.top.shape, vocabulary = Math.log2(Math.max(2, figure.vocabulary));
  const followed = panel.masked ? "the token itself" : "the token that follows";
  const measures = {
    "probability of the best guess": (c) => probability[c * k],
    [`probability of ${followed}`]: (c) => Math.max(0, target[c]),
    [`rank of ${followed}`]: (c) => (rank[c] < 0 ? 0 : 1 - Math.log2(rank[c] + 1) / vocabulary),
    "entropy": (c) => entropy[c] / vocabulary,
    "distance from the final guess": (c) => Math.min(1, kl[c] / 8),
  };
  const select = make("select", { "aria-label": "colour by" }, ...Object.keys(measures).map((name) => make("option", {}, name)));
  const ends = make("span", { class: "quiet" });
  head.append(make("label", { class: "quiet" }, "colour by ", select));
  body.append(make("p", { class: "quiet" }, "The final norm and the unembedding applied to the stream after each block: the token the network would say if it stopped there. ", ends));
  const scale = { 0: ["0", "1"], 1: ["0", "1"], 2: [`rank ${figure.vocabulary}`, "1"], 3: ["0", `${three(vocabulary)} bits`], 4: ["0", "8 bits or more"] };
  const grid = positionGrid(body, {
    rows: panel.points, cellWidth: 72, cellHeight: 24, ramp: "amount", label: "logit lens", texts: true, atFirst: true,
    draw: (r, i) => ({ value: measures[select.value](r * n + i), text: marked(figure.words[top[(r * n + i) * k]]) }),
    say: (r, i) => {
      const c = r * n + i, said = Array.from({ length: k }, (_, s) => [chip(figure.words[top[c * k + s]]), ` ${percent(probability[c * k + s])}  `]).flat();
      const wanted = rank[c] < 0 ? [] : [make("br"), `T${followed.slice(1)} has `, percent(target[c]), `, number ${rank[c] + 1} of the guesses. `];
      return [`${panel.points[r]}, position ${i}: `, ...said, ...wanted, `Entropy ${three(entropy[c])} bits, ${three(kl[c])} bits from the final guess.`];
    },
  });
  const relabel = () => { ends.replaceChildren(scaleBar(...scale[select.selectedIndex])); grid.again(); };
  select.addEventListener("change", relabel);
  relabel();
};

/** A number with its sign, unless it rounds to 0. */
const signed = (x, number = three) => { const said = number(Math.abs(x)); return Number(said) === 0 ? said : `${x < 0 ? "\u2212" : "+"}${said}`; };

panels.attribution = async (panel, body) => {
  const values = await unpack(panel.values), [parts, n] = panel.values.shape;
  const sorted = Float32Array.from(values, Math.abs).sort(), most = sorted[Math.ceil(0.995 * (sorted.length - 1))] || 1;
  const about = panel.guessed ? "the token that follows (at the end, the likeliest one)" : "the likeliest token";
  body.append(make("p", { class: "quiet" }, `What each part writes along the direction of ${about}: its logit above the average token's, as a sum, with the final norm's scale held as it was${panel.held ? `; ${panel.held}` : ""}. `, scaleBar(`\u2212${three(most)}`, `+${three(most)}`, "signed")));
  positionGrid(body, {
    rows: panel.labels, cellWidth: Math.floor(Math.min(40, Math.max(6, (body.clientWidth - 190) / n))), cellHeight: parts > 60 ? 8 : 16, ramp: "signed", label: "attribution",
    draw: (r, i) => ({ value: values[r * n + i] / most }),
    say: (r, i) => [chip(figure.tokens[i]), " \u2192 ", chip(figure.words[panel.target[i]]), ` from ${panel.labels[r]}: ${signed(values[r * n + i])} logits`],
  });
  const detail = make("div", { style: { marginTop: "6px" } });
  body.append(detail);
  let last = -1;
  follow(() => {
    if (last === state.position) return;
    last = state.position;
    const column = Array.from({ length: parts }, (_, r) => [values[r * n + last], panel.labels[r]]);
    const total = column.reduce((s, [x]) => s + x, 0);
    const largest = column.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 12);
    const number = alike(largest.map(([x]) => x)), rows = largest.map(([x, name]) => ({ name, value: x, text: signed(x, number) }));
    detail.replaceChildren(make("h3", {}, "What speaks for ", chip(figure.words[panel.target[last]]), ` after ${marked(figure.tokens[last])} (${last}); in all ${three(total)} logits`), bars(rows));
  });
};
