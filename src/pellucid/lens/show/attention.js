// Every head's pattern, small; the chosen one large, with what the chosen token reads.

panels.attention = async (panel, body) => {
  const heads = panel.heads, layers = await Promise.all(panel.layers.map(unpack)), tokens = figure.tokens, n = tokens.length;
  const { cell, shape } = panel.layers[0], side = shape[1];
  const size = side * side;
  const weight = (byte) => (byte / 255) ** 2;
  const pooled = cell > 1 ? ` A cell is the largest entry of ${cell} x ${cell} positions.` : "";
  body.append(make("p", { class: "quiet" }, "A row is a query, a column a key, and the ramp goes by the square root of the weight: ", scaleBar("0", "1"), pooled));

  const columns = Math.min(heads, 16);
  const grid = make("div", { class: "grid", role: "listbox", "aria-label": "heads", style: { gridTemplateColumns: `max-content repeat(${columns}, minmax(${heads > 8 ? 34 : 44}px, ${heads > 6 ? 84 : 104}px))` } });
  const thumbs = [];
  grid.append(make("span"), ...Array.from({ length: columns }, (_, h) => make("span", { class: "label top" }, String(h))));
  layers.forEach((bytes, l) => {
    for (let h = 0; h < heads; h++) {
      if (h % columns === 0) grid.append(make("span", { class: "label" }, h ? "" : `block ${l}`));
      const canvas = make("canvas");
      const button = make("button", { class: "thumb", role: "option", tabindex: -1, "aria-label": `head ${h} of block ${l}`, title: `head ${l}.${h}`, onclick: () => choose({ layer: l, head: h }) }, canvas);
      thumbs.push({ canvas, button, small: shrunk(bytes.subarray(h * size, (h + 1) * size), side, 64) });
      grid.append(button);
    }
  });
  const move = (dl, dh) => {
    choose({ layer: within(state.layer + dl, layers.length), head: within(state.head + dh, heads) });
    thumbs[state.layer * heads + state.head].button.focus();
  };
  arrows(grid, { left: () => move(0, -1), right: () => move(0, 1), up: () => move(-1, 0), down: () => move(1, 0) });

  const picture = make("canvas", { tabindex: 0, role: "img" }), cross = make("canvas", { "aria-hidden": "true" });
  const say = make("p", { class: "say", "aria-live": "polite" }), read = make("div"), title = make("h3");
  const large = make("div", {}, title, make("div", { class: "stack" }, picture, cross), say), beside = heads <= 8 && layers.length <= 8;
  if (beside) body.append(make("div", { class: "two" }, make("div", {}, grid, read), large));
  else body.append(grid, make("div", { class: "two" }, large, read));
  const entry = (i, j) => weight(layers[state.layer][state.head * size + Math.floor(i / cell) * side + Math.floor(j / cell)]);
  const name = (i) => (cell > 1 ? [`positions ${Math.floor(i / cell) * cell} to ${Math.min(n, (Math.floor(i / cell) + 1) * cell) - 1}`] : [chip(tokens[i]), ` ${i}`]);
  let key = 0, drawn = "", hovered = null, marks = "";

  const place = (event) => {
    const box = picture.getBoundingClientRect();
    const at = (x, length) => within(Math.floor((x / length) * side) * cell, n);
    return [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
  };
  picture.addEventListener("pointermove", (event) => { hovered = place(event); redraw(); });
  picture.addEventListener("pointerleave", () => { hovered = null; redraw(); });
  picture.addEventListener("click", (event) => { const [i, j] = place(event); key = j; choose({ position: i }); });
  const step = (di, dj) => { key = within(key + dj * cell, n); choose({ position: within(state.position + di * cell, n) }); };
  arrows(picture, { left: () => step(0, -1), right: () => step(0, 1), up: () => step(-1, 0), down: () => step(1, 0) });

  let painted = null;
  follow(() => {
    if (painted !== ramps) {
      for (const { canvas, small } of thumbs) drawBytes(canvas, small.bytes, small.side);
      painted = ramps;
      drawn = "";
    }
    const width = picture.parentElement.clientWidth, where = `${state.layer} ${state.head} ${width}`;
    if (drawn !== where) {
      drawn = where;
      thumbs.forEach(({ button }, t) => {
        const here = t === state.layer * heads + state.head;
        button.setAttribute("aria-selected", String(here));
        button.tabIndex = here ? 0 : -1;
      });
      const exact = make("canvas");
      drawBytes(exact, layers[state.layer].subarray(state.head * size, (state.head + 1) * size), side);
      const context = paint(picture, width, width);
      context.imageSmoothingEnabled = false;
      context.drawImage(exact, 0, 0, width, width);
      title.textContent = `Head ${state.head} of block ${state.layer}`;
      picture.setAttribute("aria-label", `attention pattern of head ${state.head} of block ${state.layer}; arrow keys move query and key`);
    }
    const [i, j] = hovered ?? [state.position, key];
    const now = `${where} ${i} ${j} ${state.position}`;
    if (now === marks) return;
    marks = now;
    crosshair(cross, width, i, j);
    const p = entry(i, j);
    say.replaceChildren(...name(i), " reads ", ...name(j), cell > 1 ? ` with at most ${three(p)}` : ` with weight ${three(p)}`);
    reading();
  });

  /** The keys that the chosen position reads most. */
  function reading() {
    const i = state.position, start = state.head * size + Math.floor(i / cell) * side;
    const row = Array.from(layers[state.layer].subarray(start, start + side), weight);
    const best = row.map((p, j) => [p, j]).sort((a, b) => b[0] - a[0]).slice(0, 10).filter(([p]) => p > 0);
    const rows = best.map(([p, j]) => ({ name: make("span", {}, ...name(j * cell)), value: p, text: percent(p) }));
    read.replaceChildren(make("h3", {}, "What ", ...name(i), cell > 1 ? " read most" : " reads"), rows.length ? bars(rows) : make("p", { class: "quiet" }, "Nothing."));
  }

  function crosshair(canvas, width, i, j) {
    const context = paint(canvas, width, width), one = width / side;
    const y = Math.floor(i / cell) * one, x = Math.floor(j / cell) * one;
    context.strokeStyle = ramps.text;
    context.globalAlpha = 0.45;
    context.strokeRect(0.5, y, width - 1, Math.max(one, 1));
    context.strokeRect(x, 0.5, Math.max(one, 1), width - 1);
    context.globalAlpha = 1;
    context.strokeRect(x - 0.5, y - 0.5, Math.max(one, 3) + 1, Math.max(one, 3) + 1);
  }
};

/** Bytes [side, side] with the largest of each block kept, at most `most` a side. */
function shrunk(bytes, side, most) {
  const block = Math.ceil(side / most), small = Math.ceil(side / block);
  if (block === 1) return { bytes, side };
  const kept = new Uint8Array(small * small);
  for (let i = 0, at = 0; i < side; i++) {
    const row = Math.floor(i / block) * small;
    for (let j = 0; j < side; j++, at++) {
      const k = row + Math.floor(j / block);
      if (bytes[at] > kept[k]) kept[k] = bytes[at];
    }
  }
  return { bytes: kept, side: small };
}

/** One pixel for each byte, on the ramp of amounts. */
function drawBytes(canvas, bytes, side) {
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d"), image = context.createImageData(side, side), ramp = ramps.amount;
  for (let k = 0; k < bytes.length; k++) {
    const c = ramp[bytes[k]];
    image.data[4 * k] = c[0];
    image.data[4 * k + 1] = c[1];
    image.data[4 * k + 2] = c[2];
    image.data[4 * k + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
