// Tables, bars, matrices and plain words.

panels.note = (panel, body) => body.append(make("p", { class: "quiet" }, panel.text));

/** Paragraphs, and questions whose answers open. */
panels.lesson = (panel, body) => {
  body.append(...panel.paragraphs.map((text) => make("p", {}, text)));
  body.append(...panel.questions.map(([question, answer]) => make("details", { class: "question" }, make("summary", {}, question), make("p", {}, answer))));
};

panels.bars = (panel, body) => {
  if (panel.note) body.append(make("p", { class: "quiet" }, panel.note));
  const rows = panel.labels.map((name, k) => ({ name: panel.places ? make("span", {}, chip(name), ` ${panel.places[k]}`) : name, value: panel.values[k] ?? 0 }));
  body.append(bars(rows, panel.most));
};

/** Columns of numbers with small bars; a press on a column's name sorts by it, a press on a head chooses it and shows its
    pattern below the row. */
panels.table = (panel, body) => {
  if (panel.note) body.append(make("p", { class: "quiet" }, panel.note));
  const most = panel.columns.map((_, c) => Math.max(1e-12, ...panel.rows.map((r) => (typeof r[c] === "number" ? Math.abs(r[c]) : 0))));
  const numbers = panel.columns.map((_, c) => alike(panel.rows.map((r) => r[c])));
  let by = null, down = true;
  const rows = make("tbody"), names = panel.columns.map((name, c) => make("button", { onclick: () => { down = by === c ? !down : true; by = c; fill(); } }, name));
  const heads = names.map((button) => make("th", { scope: "col", style: { textAlign: "left" } }, button));
  body.append(make("div", { class: "table" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), rows)));
  const cell = (value, c) => {
    if (Array.isArray(value)) return make("td", {}, ...value.flatMap((text) => [chip(text), " "]));
    if (typeof value !== "number" && value !== null) return make("td", {}, String(value));
    const kind = panel.bars?.[c];
    if (value === null || !kind) return make("td", { class: "number" }, numbers[c](value));
    const share = kind === "size" ? value / most[c] : Math.abs(value), start = kind === "sign" ? (value < 0 ? 50 - 50 * share : 50) : 0;
    const fill = make("div", { class: "fill", style: { left: `${start}%`, width: `${(kind === "sign" ? 50 : 100) * Math.min(1, share)}%`, background: value < 0 ? "var(--negative)" : "var(--positive)" } });
    return make("td", { class: "number" }, make("div", { class: "cell" }, numbers[c](value), make("div", { class: "track" }, fill)));
  };
  let lines = [];
  function fill() {
    const order = [...panel.rows];
    if (by !== null) order.sort((a, b) => (typeof a[by] === "number" ? a[by] - b[by] : String(a[by]).localeCompare(String(b[by]), undefined, { numeric: true })) * (down ? -1 : 1));
    heads.forEach((th, c) => th.setAttribute("aria-sort", by !== c ? "none" : down ? "descending" : "ascending"));
    lines = order.map((values) => {
      const cells = values.map(cell);
      if (panel.heads) {
        const [layer, head] = values[0].split(".").map(Number);
        const button = make("button", { onclick: () => show(values[0], layer, head), "aria-label": `show head ${values[0]}` }, values[0]);
        if (patterns) button.setAttribute("aria-expanded", String(values[0] === open));
        cells[0] = make("td", {}, button);
        return { row: make("tr", {}, ...cells), layer, head, button, name: values[0] };
      }
      return { row: make("tr", {}, ...cells) };
    });
    rows.replaceChildren(...lines.map((line) => line.row));
    mark();
  }

  // the pattern of the head that was pressed, in a row of its own below that head's
  const canvas = make("canvas"), reads = make("div"), detail = make("tr", { class: "detail" });
  detail.append(make("td", { colspan: String(panel.columns.length) }, make("div", {}, canvas, reads)));
  let open = "", shown = "";
  function show(name, layer, head) {
    open = patterns && open !== name ? name : "";
    choose({ layer, head });
    if (open) requestAnimationFrame(() => requestAnimationFrame(() => detail.scrollIntoView({ block: "nearest" })));
  }
  const mark = () => {
    if (!panel.heads) return;
    const chosen = lines.find(({ layer, head }) => layer === state.layer && head === state.head);
    lines.forEach((line) => line.row.classList.toggle("picked", line === chosen));
    if (!patterns) return;
    if (open !== chosen?.name) open = "";
    lines.forEach((line) => line.button.setAttribute("aria-expanded", String(line.name === open)));
    const now = `${open} ${state.position} ${ramps.text}`;
    if (!open) detail.remove();
    else {
      if (chosen.row.nextSibling !== detail) chosen.row.after(detail);
      if (now === shown) return;
      patterns.draw(canvas, state.layer, state.head);
      reads.replaceChildren(...patterns.reads(state.layer, state.head, state.position));
    }
    shown = now;
  };
  fill();
  follow(mark);
};

/** A small matrix with labelled rows and columns, signed or not, against a baseline where there is one. */
panels.matrix = async (panel, body) => {
  if (panel.note) body.append(make("p", { class: "quiet" }, panel.note));
  const values = await unpack(panel.values), [height, width] = panel.values.shape;
  body.append(make("p", {}, scaleBar(three(panel.low), three(panel.high), panel.ramp)));
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": `${panel.title}; arrow keys move` }), say = make("p", { class: "say", "aria-live": "polite" });
  body.append(make("div", { class: "stack" }, canvas), say);
  const best = values.reduce((at, x, k) => (Math.abs(x) > Math.abs(values[at]) || Number.isNaN(values[at]) ? k : at), 0);
  let row = Math.floor(best / width), column = best % width;
  const columnName = (c) => (panel.places ? `${marked(panel.columns[c])} ${panel.places[c]}` : panel.columns[c]);
  const top = 20, left = Math.min(118, 12 + 7.5 * Math.max(...panel.rows.map((name) => name.length)));
  const size = () => Math.max(3, Math.min(width < 8 ? 64 : 34, (canvas.parentElement.clientWidth - left) / width));
  const tall = () => Math.min(size(), Math.max(8, Math.min(24, 640 / height)));
  const step = (dr, dc) => { row = within(row + dr, height); column = within(column + dc, width); redraw(); };
  arrows(canvas, { left: () => step(0, -1), right: () => step(0, 1), up: () => step(-1, 0), down: () => step(1, 0) });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    row = within(Math.floor((event.clientY - box.top - top) / tall()), height);
    column = within(Math.floor((event.clientX - box.left - left) / size()), width);
    redraw();
  });
  follow(() => {
    const one = size(), high = tall(), context = paint(canvas, left + one * width, top + high * height);
    canvas.style.width = `${left + one * width}px`;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = ramps.text;
    const name = clipped(context, columnName(column), left + one * width - 4), at = left + column * one;
    context.fillText(name, Math.max(0, Math.min(at, left + one * width - context.measureText(name).width)), top / 2);
    for (let r = 0; r < height; r++) {
      context.fillStyle = ramps.text;
      if (high > 11 || r === row) context.fillText(clipped(context, panel.rows[r], left - 8), 0, top + (r + 0.5) * high);
      for (let c = 0; c < width; c++) {
        const x = values[r * width + c];
        if (Number.isNaN(x)) continue;
        const y = (x - panel.low) / (panel.high - panel.low || 1);
        context.fillStyle = colourOf(panel.ramp === "signed" ? 2 * y - 1 : y, panel.ramp).fill;
        context.fillRect(left + c * one, top + r * high, one - (one > 6 ? 1 : 0), high - (high > 6 ? 1 : 0));
      }
    }
    context.strokeStyle = ramps.text;
    context.lineWidth = 2;
    context.strokeRect(left + column * one, top + row * high, one, high);
    say.textContent = `${panel.rows[row]}${panel.between}${columnName(column)}: ${three(values[row * width + column])}`;
  });
};

/** Points in the plane with a unit grid: eigenvalues. */
panels.points = async (panel, body) => {
  if (panel.note) body.append(make("p", { class: "quiet" }, panel.note));
  const xy = await unpack(panel.points), canvas = make("canvas", { role: "img", "aria-label": panel.title });
  body.append(make("div", { class: "stack", style: { maxWidth: "420px" } }, canvas));
  const far = Math.max(1e-12, ...Array.from(xy, Math.abs)) * 1.1;
  follow(() => {
    const width = canvas.parentElement.clientWidth, context = paint(canvas, width, width), at = (v) => ((v / far + 1) * width) / 2;
    context.strokeStyle = colourOf(0.25).fill;
    context.strokeRect(0, 0, width, width);
    for (const [a, b, c, d] of [[-far, 0, far, 0], [0, -far, 0, far]]) {
      context.beginPath();
      context.moveTo(at(a), at(b));
      context.lineTo(at(c), at(d));
      context.stroke();
    }
    for (let k = 0; k < xy.length; k += 2) {
      context.fillStyle = colourOf(xy[k] > 0 ? 1 : -1, "signed").fill;
      context.beginPath();
      context.arc(at(xy[k]), at(-xy[k + 1]), 3.5, 0, 7);
      context.fill();
    }
    context.fillStyle = ramps.text;
    context.font = "12px system-ui, sans-serif";
    context.fillText(three(far / 1.1), width - 44, width / 2 - 6);
  });
};
