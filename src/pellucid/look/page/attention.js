// The page Attention: every head small, one head large, its lines from token to token, and why it looks where it looks.

import { html, useMemo } from "./preact.js";
import { getJson, route, useJson, useLines, useLoad } from "./api.js";
import { Choice, Num, Panel, Term, Token, Waiting, plural, three } from "./parts.js";
import { Bars, Scale, largest } from "./charts.js";
import { HeadMatrix, HeadScores, KeyBars, Thumbnails, TokenLines, strongest } from "./trace_panels.js";
import { Loaded, Quiet, partName } from "./matrix.js";
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
  return html`<${Panel} title=${heads.parts.find((one) => one.part === part).title} code=${`${a.code}\n${heads.code}`} not=${heads.not_shown} tools=${heads.parts.length > 1 ? html`<${Choice} label="Which attention" value=${part} options=${{ attn: "target", encoder: "source", cross: "to the source" }} onChange=${(to) => set({ part: to })} />` : null}>
    <${Quiet}>The <${Term} t="attention pattern" /> of every <${Term} t="head" />.<//>
    <div class="beside"><div><${Thumbnails} heads=${heads} sorted=${view.sort} onSort=${(sort) => set({ sort })} named=${labels.value?.labels ?? []} selected=${layer * heads.heads + head} onSelect=${(k) => set({ layer: Math.floor(k / heads.heads), head: k % heads.heads })} /><${Waiting} of=${overview} what=${`reading the heads, ${heads.done} of ${plural(heads.layers, "layer")}`} /></div>
      <div><${HeadScores} heads=${heads} layer=${layer} head=${head} />
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

// One head -----------------------------------------------------------------------------------

function OneHead({ view, set, a, b, part, path, heads, layer, head, query }) {
  const see = VIEWS[view.see] ? view.see : "pattern",
    n = heads.heads;
  const reason =
    see === "difference" && !b
      ? "Give a second prompt above: the difference is between the patterns of prompts A and B."
      : see === "difference" && b.tokens.length !== a.tokens.length
        ? `Prompt A has ${plural(a.tokens.length, "token")} and prompt B ${b.tokens.length}: the difference needs two prompts of as many tokens.`
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
  const top = shown ? strongest(shown.data, columns, query, 8, see === "scores" ? (x) => x : Math.abs) : [];
  const key = shown
    ? reads(view.key_at)
      ? view.key_at
      : top[0]
    : reason
      ? Math.min(query, heads.keys.length - 1)
      : null;
  const read = { queries: heads.queries, keys: heads.keys, columns, unit: UNITS[see] };
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
      <${HeadMatrix} name=${`${layer}.${head}`} ...${{ ...read, values: shown.data, rows, signed, high }} selected=${[query, key]} onSelect=${select} />
      <${TokenLines} data=${shown.data} ...${{ ...read, rows, query, high }} onQuery=${(r) => select(r, -1)} /></div>
      <${KeyBars} ...${{ ...read, values: shown.data, row: query, top, chosen: key }} most=${["pattern", "difference", "virtual"].includes(see) ? 1 : null} onKey=${(k) => set({ key_at: k })} />`}
  <//>
  <${Why} ...${{ view, set, a, path, heads, layer, head, query, at: key }} />`;
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
