// The frame of every page: the model, the prompts as tokens, the edits, the tabs. Each page is a module of its own.

import { html, render, useEffect, useMemo, useRef, useState } from "./preact.js";
import { readRamps } from "./common.js";
import { getTrace, key, useJson, useLoad } from "./api.js";
import { address, current, set, useView } from "./state.js";
import {
  CopyButton,
  Failed,
  Num,
  Panel,
  ThemeButton,
  Token,
  Waiting,
  explainTerms,
  loading,
  placesOf,
  plural,
  useKeys,
} from "./parts.js";

/** Each page's script is loaded when the page is opened. */
const PAGES = [
  { name: "read", title: "Read", load: (model) => (model.kind ? import("./predictor.js") : import("./read.js")) },
  { name: "tokens", title: "Tokens", load: () => import("./tokens_page.js") },
  { name: "attention", title: "Attention", load: () => import("./attention.js") },
  { name: "stream", title: "Stream", load: () => import("./stream.js") },
  { name: "circuits", title: "Circuits", load: () => import("./circuits.js") },
  { name: "experiment", title: "Experiment", load: () => import("./experiment.js") },
  { name: "training", title: "Training", load: () => import("./training.js") },
];

/** The body of /api/trace; `own` is its source. */
export const promptOf = (view, model, text, own = "") => ({
  text,
  bos: view.bos,
  checkpoint: view.checkpoint,
  edits: view.edits,
  source: model.reads_source ? own || view.source || model.example_source : null,
});

function App() {
  const view = useView();
  const model = useJson("api/model", { checkpoint: view.checkpoint || null });
  if (model.error?.status === 401) return html`<${KeyForm} />`;
  if (!model.value) return html`<main><${Waiting} of=${model} what="opening the model" /></main>`;
  loading.code = model.value.loading;
  return html`<${Inspector} view=${view} model=${model.value} />`;
}

function KeyForm() {
  const field = useRef();
  const keep = (event) => {
    event.preventDefault();
    key.keep(field.current.value);
    location.reload();
  };
  return html`<main><form onSubmit=${keep}><section class="panel"><h2>This inspector asks for a key</h2>
    <label>Key <input ref=${field} type="password" autocomplete="off" required /></label> <button class="act">Use the key</button></section></form></main>`;
}

function Inspector({ view, model }) {
  const textA = view.a || model.example;
  const load = (text, own) => (signal) => getTrace(promptOf(view, model, text, own), signal);
  const shared = [view.bos, view.checkpoint, JSON.stringify(view.edits), view.source, model.reads_source];
  const a = useLoad(model.traced === false ? null : load(textA), [textA, ...shared]);
  const b = useLoad(view.b && model.traced !== false ? load(view.b, view.source_b) : null, [
    view.b,
    view.source_b,
    ...shared,
  ]);
  const page = PAGES.find((one) => one.name === view.page) ?? PAGES[0],
    closed = model.closed?.[page.name];
  const script = useLoad(async () => (closed ? { name: page.name } : (await page.load(model)).page), [page.name]),
    shown = script.value?.name === page.name ? script.value : null;
  useEffect(() => {
    document.title = `${page.title} \u2013 ${model.name} \u2013 Pellucid`;
  }, [page, model.name]);
  useEffect(() => {
    document.documentElement.dataset.ready = a.loading || b.loading || !shown ? "" : (a.value?.id ?? "none");
  }, [a.loading, b.loading, a.value?.id, shown]);
  const n = a.value?.n ?? 0,
    pos = a.value ? ((Math.max(-n, Math.min(view.pos, n - 1)) % n) + n) % n : 0;
  useKeys({ pos, n, layer: view.layer, layers: model.n_layers, head: view.head, heads: model.n_heads, set });
  const tabs = useRef();
  useEffect(() => {
    const tab = tabs.current.querySelector("[aria-current]");
    tabs.current.scrollLeft = tab.offsetLeft - (tabs.current.clientWidth - tab.clientWidth) / 2;
  }, [page]);
  const ready = shown && (shown.needs !== "trace" || a.value);
  return html`<header class="bar">
      <div class="card"><b class="name">${model.name}</b><span class="quiet"><${ModelFacts} model=${model} /></span></div>
      <${Checkpoints} view=${view} model=${model} />
      <span class="push"></span><${ThemeButton} />
    </header>
    <nav ref=${tabs} class="tabs" aria-label="Pages">${PAGES.map(
      (one) =>
        html`<a href=${address({ ...view, page: one.name })} aria-current=${one === page ? "page" : null} onClick=${(
          event,
        ) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          set({ page: one.name });
        }}>${one.title}</a>`,
    )}</nav>
    <main>
      <${Prompts} view=${view} model=${model} textA=${textA} a=${a} b=${b} pos=${pos} />
      <${Failed} of=${script} />
      ${closed ? html`<${Panel} title=${page.title} id="closed"><p>${closed}</p><//>` : ready ? html`<${shown.Page} key=${page.name} view=${view} set=${set} model=${model} a=${a.value} b=${view.b ? b.value : null} pos=${pos} />` : null}
    </main>`;
}

const ModelFacts = ({ model }) =>
  model.said ??
  html`<${Num} name="model.parameters" value=${model.parameters} digits=${16} /> parameters, ${plural(model.n_layers, "layer")}${model.n_heads ? ` \u00d7 ${plural(model.n_heads, "head")}` : ""}, width ${model.architecture.d_model}, ${model.n_vocab.toLocaleString("en")} tokens known, reads up to ${model.n_ctx.toLocaleString("en")}`;

function Checkpoints({ view, model }) {
  if (model.steps.length < 2)
    return model.step === null || model.step === undefined ? null : html`<span class="quiet">step ${model.step}</span>`;
  // may still be loading
  const steps = model.steps,
    step = view.checkpoint ? Number(view.checkpoint) : model.step,
    at = Math.max(0, steps.indexOf(step));
  return html`<label class="slider"><span>checkpoint <b>${step}</b></span><input type="range" min="0" max=${steps.length - 1} step="1" value=${at} onChange=${(event) => set({ checkpoint: String(steps[Number(event.target.value)]) })} /></label>`;
}

function Prompts({ view, model, textA, a, b, pos }) {
  const [opened, setSecond] = useState(false),
    second = opened || Boolean(view.b);
  return html`<section class="prompts" aria-label="Prompts">
    ${model.reads_source ? html`<${Prompt} id="source" label="Source" text=${view.source || model.example_source} onText=${(source) => set({ source })} tokens=${a.value?.source} />` : null}
    <${Prompt} id="prompt" label=${second ? "Prompt A" : "Prompt"} text=${textA} onText=${(text) => set({ a: text, pos: -1 })} tokens=${a.value?.tokens} pos=${pos} onPos=${(to) => set({ pos: to })} trace=${a.value} />
    <${Waiting} of=${a} />${a.value?.note && html`<p class="quiet">${a.value.note}</p>`}
    ${second && model.reads_source ? html`<${Prompt} id="source-b" label="Source B" text=${view.source_b || view.source || model.example_source} onText=${(source_b) => set({ source_b, b: view.b || textA })} tokens=${view.b ? b.value?.source : null} />` : null}
    ${second ? html`<${Prompt} id="prompt-b" label="Prompt B" text=${view.b} onText=${(text) => set({ b: text })} tokens=${view.b ? b.value?.tokens : null} /><${Waiting} of=${b} />` : null}
    <div class="row">
      ${
        second
          ? html`<button type="button" class="act small" onClick=${() => {
              setSecond(false);
              set({ b: "", source_b: "" });
            }}>Remove prompt B</button>`
          : html`<button type="button" class="act small" onClick=${() => {
              setSecond(true);
              if (textA === model.example) set({ b: model.example_b });
            }}>Compare with a second prompt</button>`
      }
      ${model.begins_with ? html`<span class="quiet">Every prompt begins with <${Token} text=${model.begins_with} special=${true} /></span>` : html`<label class="toggle"><input type="checkbox" checked=${view.bos} onChange=${(event) => set({ bos: event.target.checked })} /> separator first</label>`}
      <${Edits} view=${view} a=${a.value} />
    </div>
  </section>`;
}

function Prompt({ id, label, text, onText, tokens, pos, onPos, trace }) {
  const [typed, type] = useState(text),
    field = useRef();
  useEffect(() => type(text), [text]);
  const chip = (token, k, selected) =>
    html`<${Token} text=${token.text} special=${token.special} selected=${selected} onClick=${onPos ? () => onPos(k) : null} title=${`position ${k}, id ${token.id}${trace?.surprisal?.[k] != null ? `, ${trace.surprisal[k].toFixed(2)} bits` : ""}`} />`;
  // of a thousand chips only the two that change are made again
  const chips = useMemo(() => tokens?.map((token, k) => chip(token, k, false)), [tokens, trace]);
  const send = (event) => {
    event?.preventDefault();
    if (!typed) type(text);
    else if (typed !== text) onText(typed);
  };
  return html`<form class="prompt" onSubmit=${send}>
    <label for=${id}>${label}</label>
    <textarea id=${id} ref=${field} rows=${Math.min(4, typed.split("\n").length)} dir="auto" spellcheck="false" value=${typed} onInput=${(event) => type(event.target.value)} onBlur=${send}
      onKeyDown=${(event) => {
        if (event.key === "Enter" && !event.shiftKey) send(event);
      }}></textarea>
    <button class="act" type="submit">Read</button>
    ${tokens ? html`<div class="chips" role="group" aria-label=${`Tokens of ${label}`}>${chips.map((one, k) => (k === pos ? chip(tokens[k], k, true) : one))}</div>` : null}
  </form>`;
}

function Edits({ view, a }) {
  if (!view.edits.length) return null;
  return html`<span class="edits" role="group" aria-label="Edits">${view.edits.map((edit, k) => html`<span class="edit"><b>${edit.op}</b> ${edit.name} ${placesOf(edit)} <button type="button" aria-label=${`Remove the edit of ${edit.name}`} onClick=${() => set({ edits: view.edits.filter((_, j) => j !== k) })}>\u00d7</button></span>`)}
    ${a?.change ? html`<${CopyButton} label="Copy edits as Python" code=${a.change} />` : null}</span>`;
}

readRamps();
explainTerms();
current();
render(html`<${App} />`, document.getElementById("app"));
