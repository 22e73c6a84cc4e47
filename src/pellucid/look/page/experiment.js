// The page Experiment: replace, remove or push a part, and see what the answer becomes.

import { html, useEffect, useMemo, useRef, useState } from "./preact.js";
import { getTrace, postJson, postLines, useLines, useLoad } from "./api.js";
import { marked } from "./common.js";
import { Bars, Lines, Scale, largest } from "./charts.js";
import { Matrix, Quiet } from "./matrix.js";
import {
  Choice,
  CopyButton,
  Failed,
  Num,
  Panel,
  Slider,
  Term,
  Token,
  Waiting,
  percent,
  placesOf,
  plural,
  three,
} from "./parts.js";
import { addDefaults } from "./state.js";

addDefaults({
  metric: "logit_diff",
  site: "resid_pre",
  ablation: "mean",
  steer: "",
  factor: 2,
  towards: "",
  away: "",
  from: "mean",
  temperature: 0.8,
  seed: 1,
  tokens: 40,
});
export const page = { name: "experiment", title: "Experiment", needs: "trace", Page };

const METRICS = {
  logit_diff: "logit difference",
  probability: "probability",
  log_probability: "log probability",
  kl: "KL from this run",
  loss: "loss",
};
const UNITS = { logit_diff: "logits", log_probability: "nats", kl: "nats", loss: "nats" };
const SITES = {
  resid_pre: "stream before each block",
  attn_out: "attention writes",
  mlp_out: "MLP writes",
  "attn.z": "heads",
  "attn.q": "queries",
  "attn.k": "keys",
  "attn.v": "values",
};
const ABLATIONS = { mean: "its mean", zero: "zero", resample: "prompt B's value" };

function Page({ view, set, model, a, b }) {
  const textA = view.a || model.example,
    source = model.reads_source ? view.source || model.example_source : null;
  // the experiments compare runs without the edits of the tray, so their tokens are those of such a run
  const bare = { text: textA, source, bos: view.bos, checkpoint: view.checkpoint, edits: [] };
  const sourceB = model.reads_source ? view.source_b || source : null,
    apart = sourceB !== source;
  const load = (signal) =>
    Promise.all([getTrace(bare, signal), view.b ? getTrace({ ...bare, text: view.b, source: sourceB }, signal) : null]);
  const unedited = useLoad(view.edits.length ? load : null, [
    JSON.stringify(bare),
    view.b,
    sourceB,
    view.edits.length > 0,
  ]);
  const [own, other] = view.edits.length ? (unedited.value ?? []) : [a, b];
  if (!a.predicts)
    return html`<${Panel} title="Experiment"><p>This model has no logits, so no answer can be measured.</p><//>`;
  if (model.masked)
    return html`<${Panel} title="Experiment"><p>This model predicts masked tokens at every position. The experiments of this page measure what a model says next.</p><//>`;
  if (!own) return html`<${Waiting} of=${unedited} what="reading the prompt without edits" />`;
  const metric = metricOf(view, own, other);
  const asked = { a: textA, b: view.b, source, bos: view.bos, checkpoint: view.checkpoint, metric };
  const shared = { view, set, model, a: own, b: other, asked, textA, sourceB, apart };
  return html`<${Measure} ...${shared} /><${Patching} ...${shared} /><${Ablation} ...${shared} /><${Steering} ...${shared} /><${SideBySide} key=${JSON.stringify([bare, view.edits])} ...${shared} /><${EditList} ...${shared} />`;
}

/** The likeliest next tokens of both prompts, each once. */
const candidates = (a, b) => {
  const seen = new Map();
  for (const token of [...a.top.at(-1), ...(b?.top?.at(-1) ?? [])]) if (!seen.has(token.id)) seen.set(token.id, token);
  return [...seen.values()];
};

/** The metric as the server reads it: A's answer against B's, or A's two likeliest tokens, unless tokens were chosen. */
function metricOf(view, a, b) {
  const own = a.top.at(-1),
    other = b?.top?.at(-1) ?? [];
  const usual = [own[0].id, other.length && other[0].id !== own[0].id ? other[0].id : (own[1] ?? own[0]).id];
  const read = (text, id) => (text === "" ? id : /^#\d+$/.test(text) ? Number(text.slice(1)) : text);
  const one = read(view.target, usual[0]),
    two = read(view.against, usual[1]);
  if (view.metric === "kl" || view.metric === "loss") return { kind: view.metric };
  return view.metric === "logit_diff" ? { kind: view.metric, one, other: two } : { kind: view.metric, one };
}

function Measure({ view, set, a, b, asked }) {
  const { metric } = asked,
    both = metric.kind === "logit_diff";
  const pick = (name, label, value) =>
    html`<${PickToken} label=${label} value=${value} tokens=${candidates(a, b)} onPick=${(token) => set({ [name]: token })} />`;
  return html`<${Panel} title="What is measured" not="how good the answer is: the number says how strongly the model prefers one token at the last position.">
    <div class="row"><${Choice} label="Metric" value=${view.metric} options=${METRICS} onChange=${(kind) => set({ metric: kind })} />
      ${"one" in metric ? pick("target", "of", metric.one) : null}${both ? pick("against", "against", metric.other) : null}</div>
    ${view.edits.length ? html`<${Quiet}>Patching, ablation and steering start from the run without the edits. Generate, and every other page, use them.<//>` : null}
  <//>`;
}

/** A token out of the likeliest, or any that is written. */
function PickToken({ label, value, tokens, onPick }) {
  const known = tokens.find((token) => token.id === value);
  return html`<label class="picktoken">${label} <select value=${known ? `#${value}` : "other"} onChange=${(event) => onPick(event.target.value)}>
      ${tokens.map((token) => html`<option value=${`#${token.id}`}>${marked(token.text)} (${percent(token.p)})</option>`)}
      ${known ? null : html`<option value="other">${typeof value === "string" ? marked(value) : `id ${value}`}</option>`}
    </select> <input type="text" class="short" placeholder="or write it" aria-label=${`${label}: another token`} onChange=${(event) => event.target.value !== "" && onPick(event.target.value)} /></label>`;
}

// Patching -----------------------------------------------------------------------------------

/** The most places that are computed exactly without being asked for. */
const MOST_EXACT = 3000;

/** Estimates of all places, where there are any, which the exact values overwrite as they come. */
function foldPatching(value, line) {
  if (line.kind === "start") {
    const rows = line.heads
      ? line.layers.flatMap((layer) => Array.from({ length: line.heads }, (_, head) => [layer, head]))
      : line.layers.map((layer) => [layer, null]);
    const columns = line.tokens.length,
      estimate = new Float64Array(rows.length * columns).fill(NaN);
    line.estimate?.forEach((positions, l) =>
      positions.forEach((x, p) =>
        (line.heads ? x : [x]).forEach((y, h) => {
          estimate[((line.heads || 1) * l + h) * columns + p] = y ?? NaN;
        }),
      ),
    );
    return {
      ...line,
      rows,
      columns,
      estimate,
      values: estimate.slice(),
      exact: new Uint8Array(estimate.length),
      done: 0,
      total: estimate.length,
      end: null,
    };
  }
  if (line.kind === "end") return { ...value, end: line };
  const values = value.values.slice(),
    exact = value.exact.slice(),
    l = value.layers.indexOf(line.layer);
  for (const [p, h, x] of line.cells) {
    const k = ((value.heads || 1) * l + h) * value.columns + p;
    values[k] = x ?? NaN;
    exact[k] = 1;
  }
  return { ...value, values, exact, done: line.done };
}

function Patching({ view, set, model, a, b, asked, sourceB, apart }) {
  const alike = b && a.n === b.n,
    size = a.n * model.n_layers * (view.site.startsWith("attn.") ? model.n_heads : 1),
    [wanted, want] = useState("");
  const question = JSON.stringify([asked, view.site]),
    exact = size <= MOST_EXACT || wanted === question,
    body = alike ? { ...asked, site: view.site, exact, ...(apart ? { source_b: sourceB } : {}) } : null;
  const run = useLines(body && "api/experiment/patch", body, foldPatching, [JSON.stringify(body)]);
  const got = run.value,
    kl = asked.metric.kind === "kl";
  const share = useMemo(() => got && shares(got), [got]);
  const add = (r, p) => {
    const [layer, head] = got.rows[r],
      edit = { op: "resample", name: `blocks.${layer}.${got.site}`, pos: [p], value: runOf(view, sourceB) };
    if (head !== null) edit[model_head(got.site)] = [head];
    set({ edits: [...view.edits, edit] });
  };
  const name = (r) => (got.rows[r][1] === null ? `block ${got.rows[r][0]}` : `${got.rows[r][0]}.${got.rows[r][1]}`);
  const describe = (r, p) => {
    const k = r * got.columns + p;
    const where = `${name(r)} at ${p}, ${marked(got.tokens[p])}: `;
    if (kl && !got.exact[k]) return `${where}not computed yet`;
    return html`${where}<${Num} name="patch.cell" value=${got.values[k]} /> ${got.exact[k] ? "exact" : "estimated"}${share.flat ? "" : html`, ${three(share.values[k])} of the way to B`}${got.exact[k] && !kl ? html`; the estimate was <${Num} name="patch.estimate" value=${got.estimate[k]} />` : ""}`;
  };
  return html`<${Panel} title="Patching: what makes the difference between A and B?" code=${got?.code} id="patching"
      not="parts that act only together: one place is replaced at a time. A place with 0 may still matter beside another.">
    ${
      !b
        ? html`<p>Write a second prompt above (\u201cCompare with a second prompt\u201d) that differs from the first in one thing, with as many tokens. Its values are then put into the run of the first, one place at a time.</p>
      ${model.example_b && asked.a === model.example ? html`<p><button type="button" class="act" onClick=${() => set({ b: model.example_b })}>Use \u201c${model.example_b}\u201d</button></p>` : null}`
        : html`
    <${Quiet}>The run of prompt A is repeated with what prompt B has at one place. ${kl ? html`KL has slope 0 at run A, so it cannot be estimated: only <${Term} t="activation patching">exact values<//> are shown.` : html`<${Term} t="attribution patching">Estimates<//> come at once; <${Term} t="activation patching">exact values<//> replace them as they are computed.`} A click on a place makes it an edit.<//>
    <div class="row"><${Choice} label="What is replaced" value=${view.site} options=${SITES} onChange=${(site) => set({ site })} /></div>
    ${alike ? null : html`<p class="error" role="alert">Prompt A has ${plural(a.n, "token")} and prompt B has ${b.n}: write them so that they have equally many (the boxes under the prompts are the tokens).</p>`}
    ${
      got
        ? html`<p>${got.metric}: A <${Num} name="patch.own" value=${got.own} unit=${UNITS[view.metric]} />, B <${Num} name="patch.other" value=${got.other} unit=${UNITS[view.metric]} />. ${" "}<span class="quiet" aria-live="polite" data-done=${got.done} data-total=${got.total}>${!exact ? html`${kl ? "" : "estimates; "}<button type="button" class="act small" onClick=${() => want(question)}>compute all ${got.total} exactly</button>` : got.done < got.total ? `exact values: ${got.done} of ${got.total} places \u2026 ${run.seconds.toFixed(1)} s` : "all values are exact"}${got.end && !kl ? html`; the estimates correlate with them at <${Num} name="patch.correlation" value=${got.end.correlation} />` : ""}</span></p>
      <p>${share.flat ? "A and B have the same value, so the change itself is shown " : "The share of the way from A to B "}<${Scale} low=${three(-share.most)} high=${three(share.most)} ramp="signed" /></p>
      <${Matrix} values=${share.values} rows=${got.rows.length} columns=${got.columns} ramp="signed" high=${share.most} label="patching" describe=${describe} onSelect=${add}
        rowNames=${got.rows.map((_, r) => name(r))} columnNames=${got.tokens.map(marked)} biggest=${44} rings=${share.rings} />
      <${Failed} of=${run} />
      ${share.rings.length ? html`<${Quiet}>Ringed: the estimate is wrong by more than a quarter of the way.<//>` : null}`
        : alike
          ? html`<${Waiting} of=${run} what=${kl ? "running both prompts" : "estimating all places"} />`
          : null
    }`
    }
  <//>`;
}

/** The run of prompt B as a value of an edit; the source is named where there is an encoder. */
const runOf = (view, source) => ({ run_of: view.b, ...(source === null ? {} : { source }) });

/** The field of an edit that names a head of this tensor. */
const model_head = (site) => (site === "attn.k" || site === "attn.v" ? "kv_head" : "head");

/** Values as shares of the way from A to B, where there is one; and where estimates were far off. */
function shares(got) {
  const way = got.other - got.own,
    flat = Math.abs(way) < 1e-9,
    scaled = (x) => (flat ? x - got.own : (x - got.own) / way);
  const values = Float64Array.from(got.values, scaled),
    rings = [];
  got.exact.forEach((exact, k) => {
    if (exact && !flat && Math.abs(scaled(got.estimate[k]) - values[k]) > 0.25)
      rings.push([Math.floor(k / got.columns), k % got.columns]);
  });
  return { values, flat, rings, most: flat ? largest(values, 1e-6) : Math.max(1, Math.min(2, largest(values))) };
}

// Ablation -----------------------------------------------------------------------------------

const foldAblation = (value, line) => ({ ...(value ?? {}), [line.site]: line });

function Ablation({ view, set, a, b, asked, textA, sourceB, apart }) {
  const allowed = view.ablation !== "resample" || (b && a.n === b.n && !apart),
    body = allowed ? { ...asked, b: apart ? "" : asked.b, kind: view.ablation } : null;
  const run = useLines(body && "api/experiment/ablate", body, foldAblation, [JSON.stringify(body)]);
  const heads = run.value?.["attn.z"],
    parts = ["attn_out", "mlp_out"].map((site) => run.value?.[site]).filter(Boolean);
  const edit = (name, more) => {
    const value = {
      mean: { mean_of: (!apart && view.b) || textA, ...(asked.source === null ? {} : { source: asked.source }) },
      zero: null,
      resample: runOf(view, sourceB),
    }[view.ablation];
    set({ edits: [...view.edits, { op: view.ablation, name, ...(value ? { value } : {}), ...more }] });
  };
  const kinds = !apart && view.b ? { ...ABLATIONS, mean: "its mean over prompt B" } : ABLATIONS;
  const flat = heads ? Float64Array.from(heads.effect.flat(), (x) => x ?? NaN) : null,
    most = heads ? largest([...flat, ...parts.flatMap((part) => part.effect)], 1e-6) : 1;
  return html`<${Panel} title="Ablation: which parts does the answer need?" code=${heads?.code} id="ablation"
      not="what a part does when another stands in for it. Zero and means are values that the model never met in training.">
    <div class="row"><span class="quiet">One part at a time is replaced by</span><${Choice} label="Replaced by" value=${view.ablation} options=${kinds} onChange=${(ablation) => set({ ablation })} /></div>
    ${allowed ? null : html`<p>${apart ? "Prompt B has another source, and an ablation takes values from a run with the same one: remove Source B, or choose the mean." : "Write a second prompt, of as many tokens, to take values from."}</p>`}
    <${Waiting} of=${run} what="running the model without each part" />
    ${
      heads
        ? html`<p>${heads.metric}: <${Num} name="ablation.baseline" value=${heads.baseline} unit=${UNITS[view.metric]} /> with every part; shown is the change <${Scale} low=${three(-most)} high=${three(most)} ramp="signed" /></p>
    <div class="two"><div><h3>Without one head</h3><${Matrix} values=${flat} rows=${heads.effect.length} columns=${heads.effect[0].length} ramp="signed" high=${most} biggest=${34} label="ablation of heads"
        describe=${(l, h, x) => html`without head ${l}.${h}: <${Num} name=${`ablation.head.${l}.${h}`} value=${x} />`} onSelect=${(l, h) => edit(`blocks.${l}.attn.z`, { head: [h] })} rowNames=${heads.effect.map((_, l) => `block ${l}`)} />
        <${Quiet}>${strongest(heads.effect, UNITS[view.metric])}<//></div>
    <div><h3>Without one block's attention or MLP</h3><${Bars} label="ablation of parts" most=${most} rows=${parts.flatMap((part) => part.effect.map((x, l) => ({ label: html`<button type="button" class="link" onClick=${() => edit(`blocks.${l}.${part.site}`, {})}>${part.site === "attn_out" ? "attention" : "MLP"} ${l}</button>`, value: x, name: `ablation.${part.site}.${l}` })))} /></div></div>
    <${Quiet}>A click on a part makes it an edit.<//>`
        : null
    }
  <//>`;
}

/** The head whose loss moves the metric most, in words. */
function strongest(effect, unit) {
  let best = [0, 0];
  effect.forEach((row, l) =>
    row.forEach((x, h) => {
      if (Math.abs(x ?? 0) > Math.abs(effect[best[0]][best[1]] ?? 0)) best = [l, h];
    }),
  );
  return html`Most depends on head ${best[0]}.${best[1]}: without it the metric changes by <${Num} name="ablation.most" value=${effect[best[0]][best[1]]} unit=${unit} />.`;
}

// Steering -----------------------------------------------------------------------------------

/** The stream before each block and at its end: between two blocks it is one tensor. */
const steeringPoints = (model) =>
  model.tensors
    .map((tensor) => tensor.name)
    .filter((name) => /^blocks\.\d+\.resid_pre$/.test(name) || name === `blocks.${model.n_layers - 1}.resid_post`);
const TAKEN_AT = { mean: "mean of all tokens", last: "last token" };
/** Below this length two texts have the same stream. */
const NO_DIRECTION = 1e-5;

const foldSteering = (value, line) =>
  line.kind === "start" ? { ...line, points: [] } : { ...value, points: [...value.points, line] };

/** A field for a text, of several lines too, which keeps what is typed until Enter, or until it is left. */
function TextField({ label, value, onChange }) {
  const [typed, type] = useState(value);
  useEffect(() => type(value), [value]);
  const send = () => {
    onChange(typed);
    if (!typed) type(value);
  };
  return html`<label class="field">${label} <textarea rows="1" dir="auto" spellcheck="false" value=${typed} onInput=${(event) => type(event.target.value)} onChange=${send}
    onKeyDown=${(event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        send();
      }
    }}></textarea></label>`;
}

function Steering({ view, set, model, asked, textA }) {
  const points = steeringPoints(model),
    at = points.includes(view.steer) ? view.steer : `blocks.${Math.floor(model.n_layers / 2)}.resid_pre`;
  const towards = view.towards || view.b,
    away = view.away || textA;
  const where = view.from === "mean" ? "mean" : -1,
    body = towards ? { ...asked, at, towards, away, pos: where } : null;
  const run = useLines(body && "api/experiment/steer", body, foldSteering, [JSON.stringify(body)]);
  const got = run.value,
    chosen = where === "mean" ? "mean" : "last",
    offered = Object.fromEntries(
      Object.entries(TAKEN_AT).filter(([name]) => name === chosen || !got || got.lengths[name] >= NO_DIRECTION),
    );
  const point = got?.points.find((one) => one.factor === view.factor);
  const add = () =>
    set({ edits: [...view.edits, { op: "add", name: at, factor: view.factor, value: { towards, away, pos: where } }] });
  const field = (name, value, label) =>
    html`<${TextField} label=${label} value=${value} onChange=${(text) => set({ [name]: text })} />`;
  return html`<${Panel} title="Steering: push the stream in a direction" code=${point?.code} id="steering" not="whether the model uses this direction by itself; only what happens when it is added at every position.">
    <${Quiet}>The direction is the stream of one text less that of another${got && Object.keys(offered).length < 2 ? `, which at the ${chosen === "mean" ? "last token" : "mean"} are equal` : ""}. A multiple of it is added at every position of prompt A.<//>
    <div class="row">${field("towards", towards, "towards")}${field("away", away, "away from")}<label class="field">at <select value=${at} onChange=${(event) => set({ steer: event.target.value })}>${points.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <${Choice} label="Taken at" value=${chosen} options=${offered} onChange=${(from) => set({ from })} /></div>
    ${towards ? null : html`<p>Write a text to steer towards, or a second prompt above.</p>`}
    <${Failed} of=${run} />
    ${
      got && got.length < NO_DIRECTION
        ? html`<p>The streams of the two texts are equal there, so there is no direction: choose ${got.lengths.mean >= NO_DIRECTION ? "the mean, or " : ""}a later block.</p>`
        : got
          ? html`<div class="two"><div><${Slider} label="factor" value=${view.factor} min=${got.factors[0]} max=${got.factors.at(-1)} step=${0.5} onInput=${(factor) => set({ factor })} /> <button type="button" class="act small" disabled=${!view.factor} onClick=${add}>Add to the edits</button>
        <${Lines} label="metric by factor" xName="factor" yName=${got.metric} series=${[{ name: "", x: got.points.map((one) => one.factor), y: got.points.map((one) => one.value) }]} mark=${view.factor} onSelect=${(factor) => set({ factor })} height=${200} />
        <span class="quiet">the direction's length is <${Num} name="steering.length" value=${got.length} />${run.loading ? `; ${got.points.length} of ${got.factors.length} factors` : ""}</span></div>
      <div><h3>Next token at factor ${three(view.factor)}</h3>${point ? html`<${Quiet}>metric <${Num} name="steering.value" value=${point.value} unit=${UNITS[view.metric]} /><//><${Bars} most=${1} label="next tokens when steered" rows=${point.top.map((token, k) => ({ label: html`<${Token} text=${token.text} />`, value: token.p, said: percent(token.p), name: `steering.top.${k}` }))} />` : html`<${Quiet}>not computed yet<//>`}</div></div>`
          : html`<${Waiting} of=${run} what="steering" />`
    }
  <//>`;
}

// Generation ---------------------------------------------------------------------------------

function SideBySide({ view, set, model, asked, textA }) {
  const [state, put] = useState({ texts: null, error: null, busy: false, code: null }),
    control = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  const run = async () => {
    control.current?.abort();
    const mine = (control.current = new AbortController()),
      texts = { without: "", with: "" },
      ended = {};
    put({ texts, ended, error: null, busy: true, code: null });
    try {
      let code = null;
      const body = {
        a: textA,
        source: asked.source,
        bos: view.bos,
        checkpoint: view.checkpoint,
        edits: view.edits,
        max_tokens: view.tokens,
        temperature: view.temperature,
        seed: view.seed,
      };
      for await (const line of postLines("api/experiment/generate", body, mine.signal)) {
        if (line.kind === "start") code = line.code;
        else {
          texts[line.side] += line.text;
          if (line.ended) ended[line.side] = line.ended;
        }
        put({ texts: { ...texts }, ended: { ...ended }, error: null, busy: true, code });
      }
      put({ texts, ended, error: null, busy: false, code });
    } catch (error) {
      if (!mine.signal.aborted) put((old) => ({ ...old, error, busy: false }));
    }
  };
  const stop = () => {
    control.current?.abort();
    put((old) => ({ ...old, busy: false }));
  };
  const column = (side, title) =>
    html`<div><h3>${title}</h3><p class="written" data-side=${side} data-ended=${state.ended?.[side] ?? ""}><span class="quiet">${textA}</span>${state.texts[side]}</p></div>`;
  return html`<${Panel} title="Generate with and without the edits" code=${state.code} id="generate" not="the spread of texts: it is one sample with one seed; other seeds give other texts.">
    <div class="row"><button type="button" class="act" onClick=${state.busy ? stop : run}>${state.busy ? "Stop" : "Generate"}</button>
      <${Slider} label="temperature" value=${view.temperature} min=${0} max=${2} step=${0.1} onInput=${(temperature) => set({ temperature })} />
      <${Slider} label="tokens" value=${view.tokens} min=${5} max=${200} step=${5} onInput=${(tokens) => set({ tokens })} />
      <${Slider} label="seed" value=${view.seed} min=${1} max=${20} step=${1} onInput=${(seed) => set({ seed })} /></div>
    ${view.edits.length ? null : html`<${Quiet}>There are no edits yet, so both texts will be the same. A click on a place, a head or a part above makes one.<//>`}
    <${Failed} of=${state} />
    ${state.texts ? html`<div class="two">${column("without", "without edits")}${column("with", `with ${plural(view.edits.length, "edit")}`)}</div>` : null}
  <//>`;
}

// The edits ----------------------------------------------------------------------------------

function EditList({ view, set, asked, textA }) {
  const [written, write] = useState(null),
    [error, fail] = useState(null);
  useEffect(() => {
    write(null);
    fail(null);
  }, [JSON.stringify(view.edits), view.checkpoint, view.bos, asked.source, textA]);
  if (!view.edits.length) return null;
  const body = { text: textA, source: asked.source, bos: view.bos, checkpoint: view.checkpoint, edits: view.edits };
  const load = () => postJson("api/experiment/edits", body).then(write, fail);
  const change = (k, more) => set({ edits: view.edits.map((edit, j) => (j === k ? { ...edit, ...more } : edit)) });
  const save = () => {
    const link = Object.assign(document.createElement("a"), {
      href: URL.createObjectURL(new Blob([written.json], { type: "application/json" })),
      download: "edits.json",
    });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return html`<${Panel} title="The edits" id="edits" not="a model that has learned this: the weights stay as they are, and every page shows the run of prompt A under these edits.">
    <ul class="plain">${view.edits.map(
      (edit, k) => html`<li><code>${edit.op} ${edit.name}</code> ${placesOf(edit)}
      ${edit.op === "add" || edit.op === "scale" ? html` <${Slider} label="factor" value=${edit.factor ?? 1} min=${-8} max=${8} step=${0.5} onInput=${(factor) => change(k, { factor })} />` : null}
      <button type="button" class="act small" onClick=${() => set({ edits: view.edits.filter((_, j) => j !== k) })}>Remove</button></li>`,
    )}</ul>
    <div class="row"><button type="button" class="act small" onClick=${load}>Export</button>
      ${written ? html`<${CopyButton} code=${written.code} /><${CopyButton} code=${written.json} label="Copy as JSON" /><button type="button" class="act small" onClick=${save}>Save as edits.json</button>` : null}</div>
    <${Failed} of=${{ error }} />
  <//>`;
}
