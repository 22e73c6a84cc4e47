// Every head's pattern, small; the chosen one large beside them, in sight wherever one clicks, with what it reads.

/** Of the panel that the chosen head is of: draws a head's pattern, and says what a position reads; null before. */
let patterns = null;

panels.attention = async (panel, body) => {
  const heads = panel.heads, layers = await Promise.all(panel.layers.map(unpack));
  // an encoder has blocks, heads and positions of its own; in cross-attention the keys alone are the source's
  const queries = panel.of === "encoder" ? figure.source : figure.tokens, keys = panel.of ? figure.source : figure.tokens;
  const own = { position: queries.length - 1, layer: 0, head: 0 }, picked = panel.of === "encoder" ? own : state;
  const pick = (changes) => { if (picked === state) choose(changes); else { Object.assign(picked, changes); redraw(); } };
  const { cell, shape } = panel.layers[0], height = shape[1], width = shape[2];
  const size = height * width;
  const weight = (byte) => (byte / 255) ** 2;
  const pooled = cell > 1 ? ` A cell is the largest entry of ${cell} x ${cell} positions.` : "";
  body.append(make("p", { class: "quiet" }, "A row is a query, a column a key, and the ramp goes by the square root of the weight: ", scaleBar("0", "1"), pooled));

  const columns = Math.min(heads, 16);
  const grid = make("div", { class: "grid heads", role: "listbox", "aria-label": "heads", style: { gridTemplateColumns: `max-content repeat(${columns}, minmax(24px, ${heads > 6 ? 84 : 104}px))` } });
  const thumbs = [];
  grid.append(make("span"), ...Array.from({ length: columns }, (_, h) => make("span", { class: "label top" }, String(h))));
  layers.forEach((bytes, l) => {
    for (let h = 0; h < heads; h++) {
      if (h % columns === 0) grid.append(make("span", { class: "label" }, ...(h ? [] : [make("span", { class: "word" }, "block "), String(l)])));
      const canvas = make("canvas");
      const button = make("button", { class: "thumb", role: "option", tabindex: -1, "aria-label": `head ${h} of block ${l}`, title: `head ${l}.${h}`, onclick: () => pick({ layer: l, head: h }) }, canvas);
      thumbs.push({ canvas, button, small: shrunk(bytes.subarray(h * size, (h + 1) * size), height, width, 64) });
      grid.append(button);
    }
  });
  const move = (dl, dh) => {
    pick({ layer: within(picked.layer + dl, layers.length), head: within(picked.head + dh, heads) });
    thumbs[picked.layer * heads + picked.head].button.focus();
  };
  arrows(grid, { left: () => move(0, -1), right: () => move(0, 1), up: () => move(-1, 0), down: () => move(1, 0) });

  const picture = make("canvas", { tabindex: 0, role: "img" }), cross = make("canvas", { "aria-hidden": "true" });
  const say = make("p", { class: "say", "aria-live": "polite" }), read = make("div", { class: "read" }), title = make("h3");
  const stage = make("div", { class: "stage" }, title, make("div", { class: "stack" }, picture, cross), say);
  body.append(make("div", { class: "look" }, stage, grid, read));
  const entry = (i, j) => weight(layers[picked.layer][picked.head * size + Math.floor(i / cell) * width + Math.floor(j / cell)]);
  const name = (i, texts) => (cell > 1 ? [`positions ${Math.floor(i / cell) * cell} to ${Math.min(texts.length, (Math.floor(i / cell) + 1) * cell) - 1}`] : [chip(texts[i]), ` ${i}`]);
  let key = 0, drawn = "", hovered = null, marks = "";

  const place = (event) => {
    const box = picture.getBoundingClientRect();
    const at = (x, length, cells, n) => within(Math.floor((x / length) * cells) * cell, n);
    return [at(event.clientY - box.top, box.height, height, queries.length), at(event.clientX - box.left, box.width, width, keys.length)];
  };
  picture.addEventListener("pointermove", (event) => { hovered = place(event); redraw(); });
  picture.addEventListener("pointerleave", () => { hovered = null; redraw(); });
  picture.addEventListener("click", (event) => { const [i, j] = place(event); key = j; pick({ position: i }); });
  const step = (di, dj) => { key = within(key + dj * cell, keys.length); pick({ position: within(picked.position + di * cell, queries.length) }); };
  arrows(picture, { left: () => step(0, -1), right: () => step(0, 1), up: () => step(-1, 0), down: () => step(1, 0) });

  let painted = null;
  follow(() => {
    if (painted !== ramps) {
      for (const { canvas, small } of thumbs) drawBytes(canvas, small.bytes, small.height, small.width);
      painted = ramps;
      drawn = "";
    }
    const wide = picture.parentElement.clientWidth, high = Math.min(wide, Math.max(40, (wide * height) / width));
    const where = `${picked.layer} ${picked.head} ${wide}`;
    if (drawn !== where) {
      drawn = where;
      thumbs.forEach(({ button }, t) => {
        const here = t === picked.layer * heads + picked.head;
        button.setAttribute("aria-selected", String(here));
        button.tabIndex = here ? 0 : -1;
      });
      const exact = make("canvas");
      drawBytes(exact, layers[picked.layer].subarray(picked.head * size, (picked.head + 1) * size), height, width);
      const context = paint(picture, wide, high);
      context.imageSmoothingEnabled = false;
      context.drawImage(exact, 0, 0, wide, high);
      title.textContent = `Head ${picked.head} of block ${picked.layer}`;
      picture.setAttribute("aria-label", `attention pattern of head ${picked.head} of block ${picked.layer}; arrow keys move query and key`);
    }
    const [i, j] = hovered ?? [picked.position, key];
    const now = `${where} ${i} ${j} ${picked.position}`;
    if (now === marks) return;
    marks = now;
    crosshair(cross, wide, high, i, j);
    const p = entry(i, j);
    say.replaceChildren(...name(i, queries), cell > 1 ? " read " : " reads ", ...name(j, keys), cell > 1 ? ` with at most ${three(p)}` : ` with weight ${three(p)}`);
    reading();
  });

  /** The keys that position i reads most by a head, as rows of bars. */
  function mostRead(layer, head, i, most = 10) {
    const start = head * size + Math.floor(i / cell) * width;
    const row = Array.from(layers[layer].subarray(start, start + width), weight);
    const best = row.map((p, j) => [p, j]).sort((a, b) => b[0] - a[0]).slice(0, most).filter(([p]) => p > 0);
    return best.map(([p, j]) => ({ name: make("span", {}, ...name(j * cell, keys)), value: p, text: percent(p) }));
  }

  /** The same for the chosen position and head, with a heading. */
  function reading() {
    const rows = mostRead(picked.layer, picked.head, picked.position);
    read.replaceChildren(make("h3", {}, "What ", ...name(picked.position, queries), cell > 1 ? " read most" : " reads"), rows.length ? bars(rows, 1) : make("p", { class: "quiet" }, "Nothing."));
  }

  if (!panel.of) {
    patterns = {
      draw: (canvas, layer, head) => drawBytes(canvas, layers[layer].subarray(head * size, (head + 1) * size), height, width),
      reads: (layer, head, i) => [make("h3", {}, `Head ${head} of block ${layer}: what `, ...name(i, queries), cell > 1 ? " read most" : " reads"), bars(mostRead(layer, head, i, 6), 1)],
    };
  }

  function crosshair(canvas, wide, high, i, j) {
    const context = paint(canvas, wide, high), dy = high / height, dx = wide / width;
    const y = Math.floor(i / cell) * dy, x = Math.floor(j / cell) * dx;
    context.strokeStyle = ramps.text;
    context.globalAlpha = 0.45;
    context.strokeRect(0.5, y, wide - 1, Math.max(dy, 1));
    context.strokeRect(x, 0.5, Math.max(dx, 1), high - 1);
    context.globalAlpha = 1;
    context.strokeRect(x - 0.5, y - 0.5, Math.max(dx, 3) + 1, Math.max(dy, 3) + 1);
  }
};

/** Bytes [height, width] with the largest of each block kept, at most `most` a side. */
function shrunk(bytes, height, width, most) {
  const block = Math.ceil(Math.max(height, width) / most), high = Math.ceil(height / block), wide = Math.ceil(width / block);
  if (block === 1) return { bytes, height, width };
  const kept = new Uint8Array(high * wide);
  for (let i = 0, at = 0; i < height; i++) {
    const row = Math.floor(i / block) * wide;
    for (let j = 0; j < width; j++, at++) {
      const k = row + Math.floor(j / block);
      if (bytes[at] > kept[k]) kept[k] = bytes[at];
    }
  }
  return { bytes: kept, height: high, width: wide };
}

/** One pixel for each byte, on the ramp of amounts. */
function drawBytes(canvas, bytes, height, width) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), ramp = ramps.amount;
  for (let k = 0; k < bytes.length; k++) {
    const c = ramp[bytes[k]];
    image.data[4 * k] = c[0];
    image.data[4 * k + 1] = c[1];
    image.data[4 * k + 2] = c[2];
    image.data[4 * k + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
