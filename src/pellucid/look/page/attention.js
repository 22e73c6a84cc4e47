// The page Attention: every head small, one head large, its lines from token to token, and why it looks where it looks.

import { html, useMemo, useRef } from "./preact.js";
import { marked } from "./common.js";
import { getJson, route, useJson, useLines, useLoad } from "./api.js";
import { Choice, Num, Panel, Term, Token, Waiting, alike, three, useRepaint, useWidth } from "./parts.js";
import { Bars, Scale, largest } from "./charts.js";
import { Canvas, Loaded, Matrix, Quiet, bitmap, fitted, partName } from "./matrix.js";
import { addDefaults } from "./state.js";

addDefaults({
  part: "attn",
  sort: "layer",
  see: "pattern",
  key_at: -1,
  first: "0.0",
  side: "key",
  by: "component",
  compare: true,
});

export const page = { name: "attention", title: "Attention", needs: "trace", Page };

const SORTS = {
  layer: "layer",
  induction: "induction",
  previous: "previous token",
  first: "first token",
  duplicate: "earlier copies",
  entropy: "entropy",
  copying: "copying",
};
const VIEWS = {
  pattern: "pattern",
  scores: "scores",
  value: "value-weighted",
  difference: "A \u2212 B",
  virtual: "through a head",
};
const UNITS = {
  pattern: "attention",
  scores: "score",
  value: "length moved",
  difference: "attention, A \u2212 B",
  virtual: "attention through both",
};
const MEANINGS = {
  induction: "of its attention: what followed earlier copies of the token",
  previous: "of its attention: the token before",
  first: "of its attention: the first token",
  duplicate: "of its attention: earlier copies of the token",
  entropy: "of its attention, on average; 0 is one key",
  copying: "of its weights: 1 raises the logits of what it reads, \u22121 lowers them",
};

function Page(all) {
  return all.model.n_layers
    ? html`<${Pattern} ...${all} />`
    : html`<section class="panel"><p>This network has no layers, so it has no attention.</p></section>`;
}

/** The heads of one attention as they arrive, layer by layer. */
function useHeads(path) {
  const load = useLines(
    path,
    null,
    (all, line) => {
      if (line.parts)
        return {
          ...line,
          path,
          scores: Object.fromEntries(line.kinds.map((kind) => [kind, []])),
          done: 0,
          tiles: { shape: line.shape, data: new Uint8Array(line.shape.reduce((x, y) => x * y)) },
        };
      if (!line.arrays)
        return {
          ...all,
          copying_reason: line.copying_reason,
          scores: { ...all.scores, ...(line.copying ? { copying: line.copying } : {}) },
        };
      all.tiles.data.set(line.arrays.tiles.data, (line.layer * all.tiles.data.length) / all.layers);
      for (const kind of all.kinds) all.scores[kind][line.layer] = line.scores[kind];
      return { ...all, tiles: { ...all.tiles }, done: line.layer + 1 };
    },
    [path],
  );
  return { ...load, heads: load.value?.path === path ? load.value : null };
}

function Pattern({ view, set, model, a, b, pos }) {
  const part = model.reads_source && ["encoder", "cross"].includes(view.part) ? view.part : "attn",
    path = `api/t/${a.id}/attention/${part}`;
  const overview = useHeads(path),
    { heads } = overview;
  if (!heads) return html`<section class="panel"><${Waiting} of=${overview} what="reading every head" /></section>`;
  const layer = Math.min(view.layer, heads.layers - 1),
    head = Math.min(view.head, heads.heads - 1),
    query = Math.min(pos, heads.queries.length - 1);
  const shared = { view, set, a, b, part, path, heads, layer, head, query };
  return html`<${Heads} ...${shared} overview=${overview} /><${OneHead} ...${shared} />`;
}

// All heads ----------------------------------------------------------------------------------

function Heads({ view, set, a, part, heads, layer, head, overview }) {
  const labels = useJson(part === "attn" ? "api/heads/labels" : null, { checkpoint: view.checkpoint || null });
  const kinds = Object.fromEntries(Object.entries(SORTS).filter(([kind]) => kind === "layer" || heads.scores[kind])),
    sort = kinds[view.sort] ? view.sort : "layer";
  const order = useMemo(() => {
    const all = Array.from({ length: heads.layers * heads.heads }, (_, k) => k),
      score = (k) => heads.scores[sort][Math.floor(k / heads.heads)]?.[k % heads.heads] ?? -Infinity;
    return sort === "layer"
      ? all
      : all.sort((p, q) => (sort === "entropy" ? score(p) - score(q) : score(q) - score(p)));
  }, [heads, sort]);
  const shares = alike(
    Object.entries(heads.scores)
      .filter(([kind]) => kind !== "entropy")
      .map(([, values]) => values[layer]?.[head]),
  );
  return html`<${Panel} title=${heads.parts.find((one) => one.part === part).title} code=${`${a.code}\n${heads.code}`} not=${heads.not_shown} tools=${heads.parts.length > 1 ? html`<${Choice} label="Which attention" value=${part} options=${{ attn: "target", encoder: "source", cross: "to the source" }} onChange=${(to) => set({ part: to })} />` : null}>
    <${Quiet}>The <${Term} t="attention pattern" /> of every <${Term} t="head" />.<//>
    <div class="row"><span class="quiet">Sort by</span><${Choice} label="Sort by" value=${sort} options=${kinds} onChange=${(to) => set({ sort: to })} /></div>
    <div class="beside"><div><${Thumbnails} tiles=${heads.tiles} ...${{ heads, order, sort }} named=${labels.value?.labels ?? []} selected=${layer * heads.heads + head} onSelect=${(k) => set({ layer: Math.floor(k / heads.heads), head: k % heads.heads })} /><${Waiting} of=${overview} what=${`reading the heads, ${heads.done} of ${heads.layers} layers`} /></div>
      <div><h3>Head ${layer}.${head} on this text</h3>
        <table class="facts-table">${Object.entries(heads.scores).map(([kind, values]) => html`<tr><td><${Term} t=${SORTS[kind]} /></td><td class="number"><${Num} name=${`score.${kind}`} value=${values[layer]?.[head] ?? null} said=${kind === "entropy" ? null : shares} unit=${kind === "entropy" ? "bits" : ""} /></td><td class="quiet">${MEANINGS[kind]}</td></tr>`)}</table>
        ${heads.copying_reason ? html`<${Quiet}>No copying score: ${heads.copying_reason}.<//>` : null}
        <h3>Heads with a name</h3>${part === "attn" ? html`<${Named} labels=${labels} set=${set} />` : html`<${Quiet}>Only in self-attention over a text: random tokens have no source.<//>`}</div></div>
  <//>`;
}

function Named({ labels, set }) {
  if (!labels.value) return html`<${Waiting} of=${labels} what="looking for heads that can be named" />`;
  const { labels: named, threshold, reason } = labels.value;
  if (reason || !named.length)
    return html`<${Quiet}>${reason ?? `No head reaches the score ${threshold} that a name takes (induction, previous token, first position), on random tokens, repeated.`}<//>`;
  return html`<p class="row figures"><span class="quiet">Score of at least ${threshold} on random tokens, repeated:</span>${named.map((one) => html`<button type="button" class="act small" onClick=${() => set({ layer: one.layer, head: one.head })}>${one.layer}.${one.head} ${one.name} <${Num} name=${`label.${one.layer}.${one.head}.${one.kind}`} value=${one.score} /></button>`)}</p>`;
}

/** Every pattern as a tile on one canvas; what is under the pointer is named below. */
function Thumbnails({ tiles, heads, order, sort, named, selected, onSelect }) {
  const box = useRef(),
    repaint = useRepaint(),
    wide = useWidth(box, 640),
    [layers, n, rows, columns] = tiles.shape;
  // one bitmap for all heads: tile k stands at (k % n, k / n)
  const atlas = useMemo(
    () =>
      bitmap(layers * rows, n * columns, "amount", (k) => {
        const y = Math.floor(k / (n * columns)),
          x = k % (n * columns);
        return tiles.data[
          ((Math.floor(y / rows) * n + Math.floor(x / columns)) * rows + (y % rows)) * columns + (x % columns)
        ];
      }),
    [tiles, repaint],
  );
  const across =
    sort === "layer" && wide / n >= 24
      ? n
      : Math.max(1, Math.min(order.length, Math.floor(wide / (wide < 500 ? 62 : 84))));
  const gap = wide / across > 40 ? 6 : 2,
    size = Math.min(150, Math.floor(wide / across) - gap),
    caption = size >= 38 ? 15 : 0;
  const tall = Math.max(8, Math.round(Math.min(1.5, rows / columns) * size)),
    step = tall + caption + gap;
  const said = (k) => `${Math.floor(k / n)}.${k % n}`,
    score = (k) => three(heads.scores[sort][Math.floor(k / n)]?.[k % n] ?? null);
  const nameOf = (k) => named.find((one) => one.layer * n + one.head === k);
  const draw = (pen, ink, over) =>
    order.forEach((k, j) => {
      const x = (j % across) * (size + gap),
        y = Math.floor(j / across) * step;
      pen.imageSmoothingEnabled = size < columns;
      pen.drawImage(atlas, (k % n) * columns, Math.floor(k / n) * rows, columns, rows, x, y, size, tall);
      pen.strokeStyle = k === selected ? ink.accent : k === over ? ink.text : ink.line;
      pen.lineWidth = k === selected ? 2 : 1;
      pen.strokeRect(x + 0.5, y + 0.5, size - 1, tall - 1);
      if (!caption) return;
      pen.textAlign = "left";
      pen.fillStyle = k === selected ? ink.accent : ink.quiet;
      pen.fillText(said(k), x + 1, y + tall + 9);
      const more =
        sort === "layer" ? ({ induction: "ind", previous: "prev", first: "first" }[nameOf(k)?.kind] ?? "") : score(k);
      if (!more || pen.measureText(said(k) + more).width + 8 > size) return;
      pen.textAlign = "right";
      pen.fillStyle = sort === "layer" ? ink.accent : ink.text;
      pen.fillText(more, x + size - 1, y + tall + 9);
    });
  const hit = (x, y) => {
    const k = Math.floor(x / (size + gap));
    return k < 0 || k >= across || y < 0 ? null : (order[Math.floor(y / step) * across + k] ?? null);
  };
  return html`<figure ref=${box} class="drawn"><${Canvas} width=${across * (size + gap)} height=${Math.ceil(order.length / across) * step} draw=${draw} hit=${hit} onPick=${onSelect} name="thumbnails" label=${`The patterns of ${order.length} heads`}
    onArrow=${(dx, dy) => {
      const to = order[order.indexOf(selected) + dx + dy * across];
      if (to !== undefined) onSelect(to);
    }}
    said=${(k) => (k === null ? "Rows are queries, columns the keys that they read; the further from the ground, the more attention (square-root scale)." : `Head ${said(k)}${sort === "layer" ? "" : `: ${SORTS[sort]} ${score(k)}`}${nameOf(k) ? `, ${nameOf(k).name} ${three(nameOf(k).score)}` : ""}`)} /></figure>`;
}

// One head -----------------------------------------------------------------------------------

function OneHead({ view, set, a, b, part, path, heads, layer, head, query }) {
  const see = VIEWS[view.see] ? view.see : "pattern",
    n = heads.heads;
  const reason =
    see === "difference" && !b
      ? "Give a second prompt above: the difference is between the patterns of prompts A and B."
      : see === "difference" && b.tokens.length !== a.tokens.length
        ? `Prompt A has ${a.tokens.length} tokens and prompt B ${b.tokens.length}: the difference needs two prompts of as many tokens.`
        : see === "virtual" && part === "cross"
          ? "A virtual head needs two heads of one sequence, and cross-attention reads another one."
          : see === "virtual" && layer === 0
            ? "A virtual head goes through a head of an earlier layer, and this is the first layer."
            : null;
  const [l, h] = view.first.split(".").map(Number),
    first = see === "virtual" ? { first_layer: Math.min(l || 0, layer - 1), first_head: Math.min(h || 0, n - 1) } : {};
  const asked = { view: see, ...first },
    address = route(`${path}/${layer}/${head}/matrix`, { ...asked, other: see === "difference" ? b?.id : null });
  const matrix = useLoad(
    reason ? null : (signal) => getJson(address, signal).then((m) => ({ ...m.arrays.matrix, address })),
    [address, reason],
  );
  const about = useJson(reason ? null : `${path}/${layer}/${head}`, asked),
    shown = matrix.value?.address === address ? matrix.value : null;
  const signed = see === "scores" || see === "difference",
    share = see === "pattern" || see === "virtual";
  const high = useMemo(() => (!shown || share ? 1 : largest(shown.data.filter(Number.isFinite))), [shown]);
  const [rows, columns] = shown?.shape ?? [0, 0],
    row = (k) => shown.data[query * columns + k];
  // a key that was chosen for another query may be one that this query does not read
  const reads = (k) => k >= 0 && k < columns && Number.isFinite(row(k)) && row(k) !== 0;
  const top = shown
    ? Array.from({ length: columns }, (_, k) => k)
        .filter((k) => Number.isFinite(row(k)))
        .sort((p, q) => (see === "scores" ? row(q) - row(p) : Math.abs(row(q)) - Math.abs(row(p))))
        .slice(0, 8)
    : [];
  const key = shown
    ? reads(view.key_at)
      ? view.key_at
      : top[0]
    : reason
      ? Math.min(query, heads.keys.length - 1)
      : null;
  const select = (r, k) => set({ key_at: k, pos: Math.min(r, a.n - 1) });
  const zero = () =>
    set({
      edits: [
        ...view.edits,
        {
          op: "zero",
          name: `${part === "encoder" ? "encoder." : ""}blocks.${layer}.${part === "cross" ? "cross" : "attn"}.z`,
          head: [head],
        },
      ],
    });
  const step = (label, value, most, change) =>
    html`<span class="stepper" role="group" aria-label=${label}>${[-1, 1].map((by) => html`<button type="button" class="act small" disabled=${value + by < 0 || value + by >= most} aria-label=${by < 0 ? `${label} before` : `next ${label}`} onClick=${() => change(value + by)}>${by < 0 ? "\u2039" : `${label} ${value} \u203a`}</button>`)}</span>`;
  return html`<${Loaded} id="one-head" title=${`Head ${layer}.${head}`} of=${about} value=${reason ? {} : about.value} before=${[a.code, see === "difference" && b ? b.code.replace("trace =", "other =") : null].filter(Boolean).join("\n")}
      tools=${html`${step("layer", layer, heads.layers, (to) => set({ layer: to }))}${step("head", head, n, (to) => set({ head: to }))}<button type="button" class="act small" title="Adds an edit above: everything is computed again without what this head writes" onClick=${zero}>Zero this head</button>`}
      head=${html`<div class="row"><${Choice} label="What is drawn" value=${see} options=${VIEWS} onChange=${(to) => set({ see: to })} />
        ${see === "virtual" && !reason ? html`<label class="quiet">reads through head <select value=${`${first.first_layer}.${first.first_head}`} onChange=${(event) => set({ first: event.target.value })}>${Array.from({ length: layer * n }, (_, k) => html`<option>${Math.floor(k / n)}.${k % n}</option>`)}</select></label>` : null}
        <span class="push"></span><${Scale} low=${signed ? `\u2212${three(high)}` : "0"} high=${three(high)} ramp=${signed ? "signed" : "amount"} /></div>${reason ? html`<${Quiet} why=${see}>${reason}<//>` : null}<${Waiting} of=${matrix} what="computing the matrix" />`}>
    ${() =>
      !shown || reason
        ? null
        : html`<div class="beside">
      <${Matrix} name="attention" label=${`Head ${layer}.${head}: queries in rows, keys in columns`} values=${shown.data} rows=${rows} columns=${columns} ramp=${signed ? "signed" : "amount"} companded=${!signed} high=${high} rowNames=${heads.queries.map(marked)} columnNames=${heads.keys.map(marked)} biggest=${40} selected=${[query, key]} onSelect=${select}
        describe=${(r, k, x) => html`<${Token} text=${heads.queries[r]} /> at ${r} reads <${Token} text=${heads.keys[k]} /> at ${k}: ${Number.isFinite(x) ? html`${UNITS[see]} <b>${three(x)}</b>` : "it may not"}`} />
      <${TokenLines} data=${shown.data} ...${{ rows, columns, heads, query, high }} onQuery=${(r) => select(r, -1)} /></div>
      <h3>What <${Token} text=${heads.queries[query]} /> at ${query} reads: ${UNITS[see]}</h3>
      <${Bars} label="The keys of this query" most=${["pattern", "difference", "virtual"].includes(see) ? 1 : null} rows=${top.map((k) => ({ label: html`<${Token} text=${heads.keys[k]} onClick=${() => set({ key_at: k })} /> ${k}`, value: row(k), selected: k === key, name: `row.${k}` }))} />`}
  <//>
  <${Why} ...${{ view, set, a, path, heads, layer, head, query, at: key }} />`;
}

const WINDOW = 32;

/** Queries on the left, keys on the right, and a line for what each reads; those of the chosen query stand out. */
function TokenLines({ data, rows, columns, heads, query, high, onQuery }) {
  const box = useRef(),
    wide = useWidth(box, 420),
    start = (n) => Math.max(0, Math.min(n - WINDOW, query - WINDOW / 2));
  const q0 = start(rows),
    k0 = rows === columns ? q0 : start(columns),
    q1 = Math.min(rows, q0 + WINDOW),
    k1 = Math.min(columns, k0 + WINDOW);
  const line = 19,
    width = Math.min(wide, 460),
    edge = Math.min(130, width * 0.32),
    y = (j) => 3 + (j + 0.5) * line;
  const draw = (pen, ink, over) => {
    const chosen = over ?? query,
      size = (r, k) => {
        const x = Math.abs(data[r * columns + k]) / (high || 1);
        return Number.isFinite(x) ? x : 0;
      };
    const lines = (r, strong) => {
      for (let k = k0; k < k1; k++) {
        const x = size(r, k);
        if (x < (strong ? 0.004 : 0.08)) continue;
        pen.globalAlpha = Math.min(1, strong ? 0.12 + 0.88 * x : 0.28 * x);
        pen.lineWidth = strong ? 1 + 4 * x : 1;
        pen.strokeStyle = data[r * columns + k] < 0 ? ink.negative : ink.positive;
        pen.beginPath();
        pen.moveTo(edge, y(r - q0));
        pen.bezierCurveTo(width / 2, y(r - q0), width / 2, y(k - k0), width - edge, y(k - k0));
        pen.stroke();
      }
    };
    for (let r = q0; r < q1; r++) if (r !== chosen) lines(r, false);
    lines(chosen, true);
    pen.globalAlpha = 1;
    pen.font = `12px ${ink.mono}`;
    const write = (text, x, j, align, colour) => {
      pen.textAlign = align;
      pen.fillStyle = colour;
      pen.fillText(fitted(pen, marked(text), edge - 10), x, y(j));
    };
    for (let r = q0; r < q1; r++)
      write(heads.queries[r], edge - 6, r - q0, "right", r === chosen ? ink.accent : ink.text);
    for (let k = k0; k < k1; k++)
      write(heads.keys[k], width - edge + 6, k - k0, "left", size(chosen, k) > 0.02 ? ink.text : ink.quiet);
  };
  const hit = (x, at) => {
    const r = q0 + Math.floor((at - 3) / line);
    return x < width / 2 && r >= q0 && r < q1 ? r : null;
  };
  return html`<figure ref=${box} class="drawn"><${Canvas} width=${width} height=${line * Math.max(q1 - q0, k1 - k0) + 6} draw=${draw} hit=${hit} onPick=${onQuery} label="Lines from each query on the left to the keys that it reads on the right"
    said=${() => (q1 - q0 < rows ? `Positions ${q0} to ${q1 - 1}, around the chosen one, of ${rows}.` : null)} /></figure>`;
}

// Why ----------------------------------------------------------------------------------------

function Why({ view, set, a, path, heads, layer, head, query, at }) {
  const { side, by, compare } = view,
    why = useJson(at === null ? null : `${path}/${layer}/${head}/why`, { query, key: at, side, by });
  return html`<${Loaded} id="why" title="Why does it look there?" of=${why} what="splitting the score" before=${a.code} head=${html`<${Quiet}>A <${Term} t="score" /> is a sum over what earlier parts wrote into the <${Term} t="residual stream" />.<//>
    <div class="row"><${Choice} label="Which side is split" value=${side} options=${{ key: "who wrote the key", query: "who wrote the query", pair: "pairs" }} onChange=${(to) => set({ side: to })} />
      <${Choice} label="Into" value=${by} options=${{ component: "parts", head: "heads" }} onChange=${(to) => set({ by: to })} />
      <${Choice} label="Which number" value=${compare ? "compared" : "value"} options=${{ compared: "against the other keys", value: "the score itself" }} onChange=${(to) => set({ compare: to === "compared" })} /></div>`}>
    ${(
      panel,
    ) => html`<p class="row figures"><span><${Token} text=${heads.queries[panel.query]} /> at ${panel.query} puts <${Num} name="why.attention" value=${panel.attention} /> of its attention on <${Token} text=${heads.keys[panel.key]} /> at ${panel.key}; its score is <${Num} name="why.score" value=${panel.score} />${panel.after_cap === null ? "" : html`, <${Num} name="why.after_cap" value=${panel.after_cap} /> after the cap`}.</span></p>
      <${Quiet}>${compare ? "What each part adds to this score, less what it adds to the scores of the other keys, on average: the softmax counts only differences." : "What each part adds to this score; the parts sum to it."}<//>
      <${Bars} label="Parts of the score" rows=${panel.parts.map((row) => ({ label: partName(row.label), value: compare ? row.compared : row.value, name: `why.${row.label}` }))} />`}
  <//>`;
}
