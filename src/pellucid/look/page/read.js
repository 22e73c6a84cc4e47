// The page Read: the computation as one column of steps, from the text to the next token.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { getJson, route, useJson, useLoad } from "./api.js";
import { marked, rampAt, readRamps } from "./common.js";
import { Bars, TopBars, largest } from "./charts.js";
import { Matrix, Quiet } from "./matrix.js";
import { addDefaults, current } from "./state.js";
import {
  CopyButton,
  Num,
  Panel,
  Slider,
  Term,
  Toggle,
  Token,
  Waiting,
  percent,
  plural,
  alike,
  three,
  useRepaint,
} from "./parts.js";
import { FromText, NgramBars, NgramToggle, Progress, useNgrams } from "./text_parts.js";
import { Tour } from "./tour.js";

addDefaults({
  open: ["embed", "blocks.0", "output"],
  read_key: 0,
  read_temperature: 1,
  read_top_k: 0,
  read_top_p: 1,
  read_min_p: 0,
  read_draw: 0,
  shuffle: -1,
  positions: true,
  mask: true,
  tour: 0,
});

export const page = { name: "read", title: "Read", needs: "trace", Page };

/** MathML from the server as elements; a symbol lights up its tensor everywhere. */
export function Equation({ math, onSymbol }) {
  const ref = useRef();
  useEffect(() => {
    const parsed = new DOMParser().parseFromString(math, "text/html").body.firstElementChild;
    ref.current.replaceChildren(document.adoptNode(parsed));
  }, [math]);
  const tensor = (event) => event.target.closest?.("[data-tensor]")?.dataset.tensor;
  return html`<div class="equation scrolls" tabindex="0" ref=${ref} onPointerOver=${(event) => light(tensor(event))} onPointerLeave=${() => light(null)} onClick=${(event) => tensor(event) && onSymbol?.(tensor(event))}></div>`;
}

/** Mark the symbols and the step of one tensor, and no other. */
function light(name) {
  for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
  if (!name) return;
  for (const same of document.querySelectorAll(
    `[data-tensor="${CSS.escape(name)}"], [data-step="${CSS.escape(name)}"]`,
  ))
    same.classList.add("lit");
}

/** A vector, or one vector for each head, as rows of colour. */
export function Strip({
  name,
  tensor,
  ramp = "signed",
  high = null,
  head,
  onSelect,
  rowName = "head",
  columnName = "coordinate",
}) {
  const canvas = useRef(),
    [at, setAt] = useState(null),
    repaint = useRepaint();
  const columns = tensor.shape[tensor.shape.length - 1],
    rows = tensor.shape.length > 1 ? tensor.shape[0] : 1;
  const most = high ?? largest(Array.from(tensor.data, (x) => (Number.isFinite(x) ? x : 0)));
  useLayoutEffect(() => {
    readRamps();
    const pen = canvas.current.getContext("2d"),
      image = pen.createImageData(columns, rows);
    for (let k = 0; k < rows * columns; k++) {
      const x = tensor.data[k];
      if (!Number.isFinite(x)) continue;
      const [r, g, b] = rampAt(x / most, ramp);
      image.data.set([r, g, b, 255], 4 * k);
    }
    pen.putImageData(image, 0, 0);
  }, [tensor, ramp, most, repaint]);
  const cell = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return [
      Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)),
      Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns)),
    ];
  };
  const tall = rows === 1 ? 18 : Math.max(6, Math.min(14, 168 / rows));
  return html`<div class="strip">
    <canvas ref=${canvas} width=${columns} height=${rows} class=${onSelect ? "press" : ""} style=${{ height: `${tall * rows}px`, width: columns < 40 ? `${Math.max(60, columns * 14)}px` : "100%" }} role="img" aria-label=${`${name}: ${rows > 1 ? `${rows} rows of ` : ""}${columns} numbers`}
      onPointerMove=${(event) => setAt(cell(event))} onPointerLeave=${() => setAt(null)} onClick=${(event) => onSelect?.(...cell(event))}></canvas>
    <div class="quiet read-at">${
      at
        ? `${rows > 1 ? `${rowName} ${at[0]}, ` : ""}${columnName} ${at[1]}: ${three(tensor.data[at[0] * columns + at[1]])}`
        : html`<${Some} name=${name} tensor=${tensor} head=${head} columns=${columns} rows=${rows} rowName=${rowName} />`
    }</div>
  </div>`;
}

/** The first few numbers of the selected head, written out. */
function Some({ name, tensor, head, columns, rows, rowName }) {
  const row = rows > 1 ? Math.min(head, rows - 1) : 0,
    count = Math.min(4, columns),
    said = alike(Array.from(tensor.data.subarray(row * columns, row * columns + count)));
  return html`${rows > 1 ? `${rowName} ${row}: ` : ""}${Array.from({ length: count }, (_, k) => {
    const x = tensor.data[row * columns + k];
    return html`${Number.isFinite(x) ? html`<${Num} name=${rows > 1 ? `${name}[${row}][${k}]` : `${name}[${k}]`} value=${x} said=${said} />` : "may not read"}${k + 1 < count ? ", " : ""}`;
  })}${columns > count ? ` \u2026 (${columns}${rows > 1 ? ` for each of ${rows} ${rowName}s` : ""})` : ""}`;
}

const partTitle = (name) => {
  const side = name.startsWith("encoder.") ? "Encoder: " : "",
    inner = name.replace("encoder.", "");
  if (inner === "embed") return `${side}From tokens to vectors`;
  if (inner === "output") return side ? "Encoder: the last stream" : "From vectors to the next token";
  return `${side}Block ${inner.split(".")[1]}`;
};

const GROUPS = {
  embed: "embedding",
  stream: "residual stream",
  norm: "norm",
  attention: "attention",
  cross: "cross-attention",
  mlp: "MLP",
  output: "unembedding",
};

function Page({ view, set, model, a, pos }) {
  const column = useJson("api/read/steps", { checkpoint: view.checkpoint || null });
  const goTo = (name) => {
    const part = column.value.parts.find((one) => one.steps.some((step) => step.name === name));
    if (!part) return;
    const open = current().open;
    if (!open.includes(part.name)) set({ open: [...open, part.name] });
    const look = (tries) => {
      const row = document.querySelector(`[data-step="${CSS.escape(name)}"]`);
      if (row) {
        row.scrollIntoView({
          block: "center",
          behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
        });
        light(name);
      } else if (tries) setTimeout(() => look(tries - 1), 100);
    };
    look(30);
  };
  const parts = column.value?.parts ?? [];
  const all = parts.every((part) => view.open.includes(part.name));
  return html`<div class="read">
    <div class="row lead">
      <p>How <${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> at position ${pos} ${model.masked ? "is read in its context" : "becomes a prediction of the next token"}.<span class="screen"> Click another token above to follow it.</span> Every number is this model's own; a coloured strip is a whole vector: <${Term} t="strip">orange is negative, blue is positive<//>.</p>
      <span class="row"><button type="button" class="act small" onClick=${() => set({ open: all ? ["embed", "output"] : parts.map((part) => part.name) })}>${all ? "Fold the blocks" : "Unfold all blocks"}</button>
      <button type="button" class="act small" onClick=${() => set({ tour: 1 })}>Take the tour</button></span>
    </div>
    <${FromText} a=${a} pos=${pos} />
    <${Waiting} of=${column} what="listing the steps" />
    ${parts.map((part) => html`<${Part} key=${part.name} part=${part} definitions=${column.value.definitions} ...${{ view, set, model, a, pos, goTo }} code=${`from pellucid.look.reading import numbers_of_part\n\nnumbers = numbers_of_part(trace, "${part.name}", ${pos})`} />`)}
    ${a.predicts ? html`<${Sampling} view=${view} set=${set} a=${a} pos=${pos} model=${model} />` : null}
    <${Kept} set=${set} a=${a} pos=${pos} />
    ${model.reads_source ? null : html`<${Order} view=${view} set=${set} a=${a} />`}
    ${view.tour ? html`<${Tour} view=${view} set=${set} steps=${parts.flatMap((part) => part.steps)} goTo=${goTo} />` : null}
  </div>`;
}

const NOT_SHOWN = {
  embed: "what a vector means: Circuits lists the tokens that are nearest to it.",
  output: "which part of the model wrote a score: Stream splits it.",
  block: "why a head looks where it looks, and what comes of its result: Attention and Stream show that.",
};

function Part({ part, definitions, view, set, model, a, pos, goTo, code }) {
  const open = view.open.includes(part.name);
  const values = useLoad(
    open
      ? (signal) =>
          getJson(route(`api/t/${a.id}/read/numbers/${part.name}`, { pos }), signal).then(({ arrays }) => arrays)
      : null,
    [a.id, pos, part.name, open],
  );
  const toggle = () => set({ open: open ? view.open.filter((name) => name !== part.name) : [...view.open, part.name] });
  const groups = useMemo(() => {
    const made = [];
    for (const step of part.steps) {
      const last = made[made.length - 1];
      if (last?.name === step.group) last.steps.push(step);
      else made.push({ name: step.group, steps: [step] });
    }
    return made;
  }, [part]);
  return html`<section class="panel part" data-part=${part.name} data-at=${values.value ? `${a.id}/${pos}` : ""}>
    <button type="button" class="fold" aria-expanded=${open ? "true" : "false"} onClick=${toggle}><span class="arrow">${open ? "\u25be" : "\u25b8"}</span> <h2>${partTitle(part.name)}</h2> <span class="quiet">${plural(part.steps.length, "step")}</span></button>
    <${Waiting} of=${values} />
    ${
      open && values.value
        ? groups.map(
            (group) => html`<div class=${`group ${group.name}`}><h3><${Term} t=${GROUPS[group.name]} /></h3>
      ${group.steps.map((step) => html`<${Row} key=${step.name} step=${step} definition=${definitions[step.definition]} tensor=${values.value[step.name]} ...${{ view, set, model, a, pos, goTo }} />`)}</div>`,
          )
        : null
    }
    ${open ? html`<div class="head"><p class="not"><b>Not shown:</b> ${NOT_SHOWN[part.name.replace("encoder.", "")] ?? NOT_SHOWN.block}</p><${CopyButton} code=${`${a.code}\n${code}`} /></div>` : null}
  </section>`;
}

function Row({ step, definition, tensor, view, set, model, a, pos, goTo }) {
  const [shown, show] = useState(false);
  if (!tensor) return null;
  const last = step.name.split(".").pop(),
    byHead = step.axes[0] === "h" || step.axes[0] === "g",
    overKeys = step.axes[step.axes.length - 1] === "j" && step.axes.length === 3;
  const scores = last === "scores" && step.name.endsWith("attn.scores");
  const select = scores ? (head, read_key) => set({ head, read_key }) : byHead ? (head) => set({ head }) : null;
  return html`<div class="step" data-step=${step.name}>
    <div class="what"><b>${step.title}</b><${Equation} math=${step.math} onSymbol=${goTo} />
      <div class="row names"><code>${step.name}</code><button type="button" class="link" aria-expanded=${shown ? "true" : "false"} onClick=${() => show(!shown)}>${shown ? "hide the definition" : "definition"}</button></div>
    </div>
    <div class="numbers">${
      last === "probs" && !model.mixed
        ? html`<${TopBars} rows=${a.top[pos]} name="top" />`
        : html`<${Strip} name=${step.name} tensor=${tensor} head=${view.head} ramp=${last === "pattern" || last === "probs" ? "amount" : "signed"} high=${last === "pattern" ? 1 : null} onSelect=${select}
          rowName=${step.axes[0] === "g" ? "key-value head" : "head"} columnName=${overKeys ? "position" : last === "logits" || last === "probs" ? "token" : "coordinate"} />`
    }
      ${scores ? html`<${Product} name=${step.name} view=${view} set=${set} a=${a} pos=${pos} heads=${tensor.shape[0]} keys=${tensor.shape[1]} />` : null}</div>
    ${shown ? html`<${Source} definition=${definition} line=${step.line} code=${`${a.code}\ntrace["${step.name}"]`} />` : null}
  </div>`;
}

export function Source({ definition, line = 0, code }) {
  return html`<div class="source"><div class="row"><span class="quiet">${definition.file}, line ${definition.first + line}</span><${CopyButton} code=${code} /></div>
    <pre tabindex="0">${definition.lines.map((text, k) => html`<span class=${k === line ? "line here" : "line"}><span class="at">${definition.first + k}</span>${text}\n</span>`)}</pre></div>`;
}

/** One score as a sum of products, one step at a time; what an encoder reads has its own positions. */
function Product({ name, view, set, a, pos, heads, keys }) {
  const head = Math.min(view.head, heads - 1),
    key = Math.min(view.read_key, keys - 1),
    [term, setTerm] = useState(null);
  const read = name.startsWith("encoder.") ? a.source : a.tokens,
    query = Math.min(pos, read.length - 1);
  const product = useJson(`api/t/${a.id}/read/product`, { name, pos: query, head, key });
  const value = product.value;
  if (product.error) return html`<${Quiet}>${product.error.message}<//>`;
  if (!value) return html`<${Waiting} of=${product} />`;
  const n = value.products.length,
    upTo = Math.min(term ?? n, n),
    sum = upTo === n ? value.sum : value.products.slice(0, upTo).reduce((s, x) => s + x, 0);
  const row = (values) => {
    const number = alike(values);
    return values.map((x, k) => html`<td class=${k < upTo ? "" : "later"}>${number(x)}</td>`);
  };
  return html`<details class="product" data-product=${`${head}/${key}`}><summary>One score, term by term: head ${head}, from <${Token} text=${read[query].text} /> to <${Token} text=${read[Math.min(key, read.length - 1)].text} /></summary>
    <${Quiet}>Click the strip above to choose a head and a position.<//>
    <${Slider} label="products added" value=${upTo} min=${0} max=${n} step=${1} said=${`${upTo} of ${n}`} onInput=${setTerm} />
    <div class="terms scrolls" tabindex="0"><table><thead><tr><th>${value.names[0]}</th>${row(value.left)}</tr>
      <tr><th>${value.names[1]}</th>${row(value.right)}</tr>
      <tr><th>product</th>${row(value.products)}</tr></thead></table></div>
    <p>${
      upTo < n
        ? html`so far <${Num} name="product.so-far" value=${sum} />`
        : html`sum <${Num} name=${`${name}.sum`} value=${value.sum} />, times <${Num} name=${`${name}.factor`} value=${value.factor} />
      ${value.masked ? ", but this position may not be read: the score is minus infinity" : html`${Math.abs(value.added) > 1e-5 ? html`, and ${three(value.added)} for the distance or the cap` : ""} = score <${Num} name=${`${name}[${head}][${key}]`} value=${value.value} />`}`
    }</p>
  </details>`;
}

export function Sampling({ view, set, a, pos, model }) {
  const asked = {
    pos,
    temperature: view.read_temperature,
    top_k: view.read_top_k,
    top_p: view.read_top_p,
    min_p: view.read_min_p,
    draw: view.read_draw,
  };
  const path = route(`api/t/${a.id}/read/sample`, asked),
    sample = useLoad((signal) => getJson(path, signal).then((found) => ({ ...found, path })), [path]);
  const value = sample.value,
    ngrams = useNgrams(view, a, pos),
    prompt = view.a || model.example;
  // what is drawn follows the end of this prompt, and of no other that is still being read
  const follows = value?.path === path && a.text === prompt;
  return html`<${Panel} title=${model.masked ? "What could stand here" : "Choosing the next token"} id="sampling" code=${value && `${a.code}\n${value.code}`} not="how a whole text changes: these sliders change one step.">
    <div class="row sliders">
      <${Slider} label=${html`<${Term} t="temperature" />`} value=${view.read_temperature} min=${0} max=${2} step=${0.05} onInput=${(read_temperature) => set({ read_temperature })} />
      <${Slider} label=${html`<${Term} t="top-k" />`} value=${view.read_top_k} min=${0} max=${Math.min(50, model.n_vocab)} step=${1} said=${view.read_top_k || "all"} onInput=${(read_top_k) => set({ read_top_k })} />
      <${Slider} label=${html`<${Term} t="top-p" />`} value=${view.read_top_p} min=${0} max=${1} step=${0.01} onInput=${(read_top_p) => set({ read_top_p })} />
      <${Slider} label=${html`<${Term} t="min-p" />`} value=${view.read_min_p} min=${0} max=${1} step=${0.01} onInput=${(read_min_p) => set({ read_min_p })} />
    </div>
    ${model.masked ? null : html`<${NgramToggle} view=${view} set=${set} /><${Progress} of=${ngrams.progress} />`}
    <${Waiting} of=${sample} />
    ${
      value
        ? html`<div class="two">
      <div><h3>What the model says</h3><${TopBars} rows=${value.rows} name="model" most=${12} /></div>
      <div><h3>What is drawn from: ${value.kept} of ${model.n_vocab} tokens</h3><${Bars} label="the probabilities that are drawn from" most=${1} rows=${value.rows.slice(0, 12).map((one) => ({ label: html`<${Token} text=${one.text} />`, value: one.drawn_from, said: one.drawn_from ? percent(one.drawn_from) : "left out", name: `drawn.${one.id}`, selected: one.id === value.drawn.id }))} /></div>
    </div>
    <div class="guesses"><${NgramBars} facts=${ngrams.facts} /></div>
    ${
      model.masked
        ? null
        : html`<p class="row">Drawn: <${Token} text=${value.drawn.text} /> <button type="button" class="act small" onClick=${() => set({ read_draw: view.read_draw + 1 })}>Draw again</button>
      ${pos === a.n - 1 ? html`<button type="button" class="act small" onClick=${() => set({ a: prompt + value.drawn.plain, pos: -1, read_draw: view.read_draw + 1 })} disabled=${!value.drawn.plain || !follows}>Write it behind the prompt</button>` : null}</p>`
    }`
        : null
    }
  <//>`;
}

/** What a cache keeps while the text is written: the columns that are there, and the one that is new. */
function Kept({ set, a, pos }) {
  const step = useJson(`api/t/${a.id}/read/cache`, { pos }),
    value = step.value?.pos === pos || step.value?.reason ? step.value : null;
  const blocks = value?.blocks?.length,
    cells = useMemo(
      () =>
        blocks &&
        Float64Array.from({ length: blocks * a.n }, (_, c) => {
          const r = Math.floor(c / a.n),
            k = c % a.n;
          return k > pos ? NaN : k === pos ? 1 : k < value.blocks[r] ? 0.12 : 0.45;
        }),
      [value],
    );
  const said = (r, k) =>
    `block ${r}, position ${k}: ${k > pos ? "not written yet" : k === pos ? "new: its query, key and value are computed now" : k < value.blocks[r] ? "kept, but outside the window of this block" : "kept: its key and value are read"}`;
  return html`<${Panel} title="What is kept while a text is written" id="cache" code=${value?.code && `${a.code}\n${value.code}`} not="the time that this saves: only the new column is computed, but it reads all that are kept.">
    <p>When a text is written token by token, the <${Term} t="cache">keys and values<//> of earlier positions never change, so they are kept. At the token <${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> only one column is new.</p>
    <${Waiting} of=${step} what="reading with a cache" />
    ${
      value?.reason
        ? html`<${Quiet}>${value.reason}<//>`
        : value
          ? html`<${Matrix} name="cache" label="Kept and new columns: blocks in rows, positions in columns" values=${cells} rows=${blocks} columns=${a.n} high=${1} rowNames=${value.blocks.map((_, r) => `block ${r}`)} columnNames=${a.tokens.map((token) => marked(token.text))} biggest=${34} most=${1100} onSelect=${(_, k) => set({ pos: k })} describe=${said} />
      <${Quiet}>Full colour: new; weaker: kept; empty: not written yet. For each token <${Num} name="cache.per_token" value=${value.per_token} digits=${9} /> numbers are kept, <${Num} name="cache.bytes" value=${value.bytes} digits=${12} /> bytes up to here.${" "}
      ${value.difference === null ? "" : html`The logits with a cache differ from those above by at most <${Num} name="cache.difference" value=${value.difference} />.`}<//>`
          : null
    }
  <//>`;
}

function Order({ view, set, a }) {
  const order = useJson(view.shuffle < 0 ? null : `api/t/${a.id}/read/order`, {
      seed: view.shuffle,
      positions: view.positions,
      mask: view.mask,
    }),
    value = order.value?.order.length === a.n ? order.value : null;
  return html`<${Panel} title="Does the order matter?" id="order" code=${value && `${a.code}\n${value.code}`} not="which part of the model uses the order: Attention shows where each head looks.">
    <p>A transformer reads a set of vectors. Only its <${Term} t="positions" /> and its <${Term} t="mask" /> tell it the order. Take both away, shuffle the tokens, and each token ends in exactly the same vector.</p>
    <div class="row"><button type="button" class="act small" onClick=${() => set({ shuffle: view.shuffle + 1 })}>${view.shuffle < 0 ? "Shuffle the tokens" : "Shuffle again"}</button>
      <${Toggle} label="with its positions" value=${view.positions} onChange=${(positions) => set({ positions })} /><${Toggle} label="with its mask" value=${view.mask} onChange=${(mask) => set({ mask })} /></div>
    ${view.edits.length ? html`<${Quiet}>This panel reads the text without the edits above: an edit of a position would meet another token in the shuffled text.<//>` : null}
    <${Waiting} of=${order} />
    ${
      value
        ? html`<p class="chips">${value.order.map((k) => html`<${Token} text=${a.tokens[k].text} special=${a.tokens[k].special} />`)}</p>
      <p>How far each token's last vector moves, as a share of its length. ${value.largest < 1e-4 ? html`<b>Nothing moves: without positions and mask, order means nothing.</b>` : ""}</p>
      <${Bars} label="how far each token's vector moves" most=${Math.max(1, value.largest)} rows=${value.difference.map((x, k) => ({ label: html`<${Token} text=${a.tokens[k].text} special=${a.tokens[k].special} />`, value: x, said: three(x), name: `moved.${k}` }))} />`
        : null
    }
  <//>`;
}
