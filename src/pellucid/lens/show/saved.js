// A saved page: the panels of the answers that stand in it, one below the other, about one token and one head.

import { html, render, useEffect, useMemo, useRef, useState } from "./preact.js";
import { alike, colourOf, marked, readRamps } from "./common.js";
import { Choice, Num, Panel, ThemeButton, Token, decoded, explainTerms, three, useKeys, useRepaint } from "./parts.js";
import { Bars, Scale, TopBars, largest } from "./charts.js";
import { Matrix, Quiet, partName } from "./matrix.js";
import { Plane } from "./plane.js";
import {
  HeadMatrix,
  HeadScores,
  KeyBars,
  LensCell,
  LensGrid,
  STATS,
  Thumbnails,
  TokenLines,
  ramped,
  strongest,
} from "./trace_panels.js";

/** What the page embeds: compressed JSON in base64. */
async function embedded() {
  const bytes = Uint8Array.from(atob(document.getElementById("figure").textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const figure = await embedded();
const panels = figure.panels.map(decoded);

/** The heads that the table shows the patterns of: the network's own attention. */
const own = panels.find((panel) => panel.kind === "attention" && panel.part === "attn");

function Page() {
  const [layer, head] = figure.head,
    n = figure.tokens.length;
  const [view, change] = useState({ pos: figure.position, chosen: false, layer, head });
  const set = (more) => change((old) => ({ ...old, ...more, chosen: old.chosen || "pos" in more }));
  useKeys({ ...view, n, layers: own?.layers ?? 0, heads: own?.heads ?? 0, set });
  useEffect(() => {
    document.documentElement.dataset.ready = "yes";
  }, []);
  return html`<div class="top"><h1>${figure.title}</h1><${ThemeButton} /></div>
    <div class="facts">${figure.facts.map(([name, value]) => html`<span>${name} <b>${value}</b></span>`)}</div>
    ${n && panels.length > 1 ? html`<${Chosen} ...${{ view, set, n }} />` : null}
    ${panels.map((panel) => html`<${PANELS[panel.kind]} ...${{ panel, view, set }} />`)}`;
}

/** The line that stays in sight: which token, with a step to either side. */
function Chosen({ view: { pos }, set, n }) {
  const step = (to, label, sign) =>
    html`<button type="button" disabled=${to < 0 || to >= n} aria-label=${label} onClick=${() => set({ pos: to })}>${sign}</button>`;
  return html`<div class="now">${step(pos - 1, "token before", "\u2190")}${step(pos + 1, "token after", "\u2192")}<span aria-live="polite">position ${pos} of 0 to ${n - 1}: <${Token} text=${figure.tokens[pos]} /></span></div>`;
}

// Tokens -------------------------------------------------------------------------------------

function Tokens({ panel: a, view: { pos }, set }) {
  useRepaint();
  const bits = a.surprisal ?? a.entropy,
    most = Math.max(a.surprisal ? 8 : 1, ...bits),
    own = a.tokens[pos].id;
  const chips = a.tokens.map((token, k) => {
    const { fill, ink } = colourOf((bits[k] ?? 0) / most);
    return html`<${Token} text=${token.text} special=${token.special} selected=${k === pos} onClick=${() => set({ pos: k })} style=${{ background: fill, color: ink }} title=${`${k}: ${bits[k] === null ? "not predicted" : `${three(bits[k])} bits`}`} />`;
  });
  const before = a.surprisal ? pos - 1 : pos;
  const guess = !a.surprisal
    ? null
    : pos === 0
      ? "Nothing was read before the first token, so nothing was expected."
      : a.surprisal[pos] === null
        ? "This token is part of the prefix, which every position reads, so it was not predicted."
        : html`It came as a surprise of <${Num} name=${`surprisal.${pos}`} value=${a.surprisal[pos]} unit="bits" />, number ${a.rank[pos] + 1} of the guesses.`;
  return html`<${Panel} title=${a.title}><p class="quiet">${a.surprisal ? "surprisal" : "entropy"}, bits: <${Scale} low="0" high=${three(most)} /> <span class="screen">Choose a token; the arrow keys move. All panels follow.</span></p>
    <div class="chips" role="group" aria-label="tokens of the prompt">${chips}</div>
    ${a.source.length ? html`<h3>Source, read by the encoder</h3><div class="chips">${a.source.map((token) => html`<${Token} text=${token.text} special=${token.special} />`)}</div>` : null}
    <div class="two" aria-live="polite"><div><h3>Expected in its place</h3>${before < 0 || (a.surprisal && a.surprisal[pos] === null) ? null : html`<${TopBars} rows=${a.top[before]} name="expected" own=${own} />`}<${Quiet}>${guess}<//></div>
      ${a.surprisal ? html`<div><h3>Expected next</h3><${TopBars} rows=${a.top[pos]} name="next" own=${a.tokens[pos + 1]?.id} /><${Quiet}>Entropy <${Num} name=${`entropy.${pos}`} value=${a.entropy[pos]} unit="bits" />.<//></div>` : null}</div>
  <//>`;
}

// Attention ----------------------------------------------------------------------------------

/** The pattern of one head as numbers, from the bytes of its tile. */
function patternOf({ tiles: { data, shape } }, layer, head) {
  const [, heads, rows, columns] = shape,
    start = (layer * heads + head) * rows * columns;
  return Float32Array.from(data.subarray(start, start + rows * columns), (byte) => (byte / 255) ** 2);
}

/** Tokens, or where a cell is several positions their first and last. */
const named = (texts, cell) =>
  cell === 1
    ? texts
    : Array.from(
        { length: Math.ceil(texts.length / cell) },
        (_, k) => `${k * cell}\u2013${Math.min(texts.length, (k + 1) * cell) - 1}`,
      );

/** What panels of one head draw: its numbers, its row at a position, and the keys that this row reads most. */
function useHead(heads, layer, head, pos, most) {
  const { cell } = heads,
    values = useMemo(() => patternOf(heads, layer, head), [heads, layer, head]),
    [, , rows, columns] = heads.tiles.shape,
    row = Math.floor(Math.min(pos, heads.queries.length - 1) / cell);
  const top = strongest(values, columns, row, most).filter((k) => values[row * columns + k] > 0);
  return { queries: named(heads.queries, cell), keys: named(heads.keys, cell), cell, rows, columns, values, row, top };
}

function Attention({ panel, view, set }) {
  const heads = useMemo(() => ({ ...panel, tiles: panel.arrays.tiles }), [panel]);
  // an encoder has blocks, heads and positions of its own; in cross-attention the keys alone are the source's
  const [apart, setApart] = useState({ pos: heads.queries.length - 1, layer: 0, head: 0 }),
    [sort, setSort] = useState("layer"),
    [key, setKey] = useState(-1);
  const own = heads.part === "encoder",
    { pos, layer, head } = own ? apart : view,
    pick = own ? (more) => setApart((old) => ({ ...old, ...more })) : set;
  const read = useHead(heads, layer, head, pos, 10),
    chosen = key >= 0 && read.values[read.row * read.columns + key] > 0 ? key : read.top[0];
  return html`<${Panel} title=${heads.title} not=${heads.not_shown}><${Quiet}>A row is a query, a column a key, and the ramp goes by the square root of the weight: <${Scale} low="0" high="1" />${heads.cell > 1 ? ` A cell is the largest entry of ${heads.cell} x ${heads.cell} positions.` : ""}<//>
    <div class="heads">
      <div class="one"><h3>Head ${head} of block ${layer}</h3><${HeadMatrix} name=${`${layer}.${head}`} ...${read} selected=${[read.row, chosen ?? 0]} onSelect=${(
        r,
        k,
      ) => {
        setKey(k);
        pick({ pos: r * heads.cell });
      }} /></div>
      <div class="all"><${Thumbnails} heads=${heads} sorted=${sort} onSort=${setSort} selected=${layer * heads.heads + head} onSelect=${(k) => pick({ layer: Math.floor(k / heads.heads), head: k % heads.heads })} /></div>
      <div class="reads"><${KeyBars} ...${read} chosen=${chosen} /><${HeadScores} heads=${heads} layer=${layer} head=${head} /><${TokenLines} data=${read.values} ...${read} query=${read.row} onQuery=${(r) => pick({ pos: r * heads.cell })} /></div></div>
  <//>`;
}

// The stream ---------------------------------------------------------------------------------

function Lens({ panel, view, set }) {
  const lens = useMemo(() => ({ ...panel, ...panel.arrays }), [panel]),
    [stat, setStat] = useState("probability"),
    [point, setPoint] = useState(lens.points.length - 1);
  const ramp = useMemo(() => ramped(lens, stat, Math.max(2, figure.vocabulary)), [lens, stat]),
    pos = view.chosen ? view.pos : 0; // it opens at the first token
  return html`<${Panel} title=${lens.title} not=${lens.not_shown}><${Quiet}>The final norm and the unembedding applied to the stream after each block: the token the network would say if it stopped there.<//>
    <div class="row"><span class="quiet">Colour</span><${Choice} label="Colour" value=${stat} options=${STATS} onChange=${setStat} /><span class="push"></span><${Scale} low=${ramp.low} high=${ramp.high} /></div>
    <${LensGrid} ...${{ lens, ramp, stat }} at=${[point, pos]} onSelect=${([p, i]) => {
      setPoint(p);
      set({ pos: i });
    }} />
    <${LensCell} ...${{ lens, point, pos }} />
  <//>`;
}

/** The size that all but the largest half per cent stay below. */
function mostOf(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  return sizes[Math.ceil(0.995 * (sizes.length - 1))] || 1;
}

/** A number with its sign, unless it rounds to 0. */
function signed(x, write = three) {
  const said = write(Math.abs(x));
  return Number(said) === 0 ? said : `${x < 0 ? "\u2212" : "+"}${said}`;
}

function Attribution({ panel, view: { pos }, set }) {
  const { data, shape } = panel.arrays.values,
    [parts, n] = shape,
    most = useMemo(() => mostOf(data), [data]),
    names = useMemo(() => panel.labels.map(partName), [panel]),
    [part, setPart] = useState(parts - 1);
  const column = Array.from({ length: parts }, (_, r) => [data[r * n + pos], names[r]]),
    largestParts = column.toSorted((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 12),
    write = alike(largestParts.map(([x]) => x)),
    total = column.reduce((sum, [x]) => sum + x, 0);
  const about = panel.guessed ? "the token that follows (at the end, the likeliest one)" : "the likeliest token";
  return html`<${Panel} title=${panel.title}><${Quiet}>What each part writes along the direction of ${about}: its logit above the average token's, as a sum, with the final norm's scale held as it was${panel.held ? `; ${panel.held}` : ""}. <${Scale} low=${`\u2212${three(most)}`} high=${`+${three(most)}`} ramp="signed" /><//>
    <${Matrix} name="attribution" label="Parts in rows, positions in columns" values=${data} rows=${parts} columns=${n} ramp="signed" high=${most} tall=${parts > 60 ? 10 : 16} biggest=${40} most=${1100} rowNames=${names} columnNames=${figure.tokens.map(marked)} selected=${[part, pos]} onSelect=${(
      r,
      i,
    ) => {
      setPart(r);
      set({ pos: i });
    }} describe=${(r, i, x) => html`<${Token} text=${figure.tokens[i]} /> \u2192 <${Token} text=${panel.target[i]} /> from ${names[r]}: ${signed(x)} logits`} />
    <h3>What speaks for <${Token} text=${panel.target[pos]} /> after <${Token} text=${figure.tokens[pos]} /> at ${pos}; in all ${three(total)} logits</h3>
    <${Bars} label="The largest parts" rows=${largestParts.map(([x, name]) => ({ label: name, value: x, said: signed(x, write), name: `part.${name}` }))} />
  <//>`;
}

// Tables, bars, matrices and words -----------------------------------------------------------

/** The pattern of the head that was pressed, in a row of its own below that head's. */
function Detail({ heads, layer, head, pos, columns }) {
  const row = useRef(),
    read = useHead(heads, layer, head, pos, 6);
  useEffect(() => {
    row.current.scrollIntoView({ block: "nearest" });
  }, [layer, head]);
  return html`<tr class="detail" ref=${row}><td colspan=${columns}><div><div><h3>Head ${head} of block ${layer}</h3><${HeadMatrix} name=${`${layer}.${head}`} ...${read} selected=${[read.row, read.top[0] ?? 0]} most=${220} /></div><div><${KeyBars} ...${read} /></div></div></td></tr>`;
}

/** Columns of numbers with small bars; a press on a column's name sorts by it, a press on a head chooses it and shows its pattern. */
function Table({ panel, view, set }) {
  const { columns, rows, bars = [] } = panel,
    [by, setBy] = useState(null),
    [down, setDown] = useState(true),
    [open, setOpen] = useState("");
  const heads = useMemo(() => own && { ...own, tiles: own.arrays.tiles }, []);
  const order = useMemo(() => {
    const compare = (a, b) =>
      typeof (a[by] ?? b[by]) === "number"
        ? (a[by] ?? -Infinity) - (b[by] ?? -Infinity)
        : String(a[by]).localeCompare(String(b[by]), undefined, { numeric: true });
    return by === null ? rows : rows.toSorted((a, b) => compare(a, b) * (down ? -1 : 1));
  }, [by, down]);
  const most = columns.map((_, c) => largest(rows.map((row) => (typeof row[c] === "number" ? row[c] : 0)))),
    numbers = columns.map((_, c) => alike(rows.map((row) => row[c])));
  const header = (name, c) =>
    html`<th scope="col" aria-sort=${by !== c ? "none" : down ? "descending" : "ascending"}><button type="button" onClick=${() => {
      setDown(by === c ? !down : true);
      setBy(c);
    }}>${name}</button></th>`;
  const cell = (value, c) => {
    if (Array.isArray(value)) return html`<td>${value.map((text) => html`<${Token} text=${text} /> `)}</td>`;
    if (typeof value !== "number" && value !== null) return html`<td>${value}</td>`;
    if (value === null || !bars[c]) return html`<td class="number">${numbers[c](value)}</td>`;
    const share = Math.min(1, Math.abs(bars[c] === "size" ? value / most[c] : value)) * (bars[c] === "sign" ? 50 : 100),
      start = bars[c] === "sign" ? (value < 0 ? 50 - share : 50) : 0;
    return html`<td class="number"><div class="cell">${numbers[c](value)}<div class="track"><div class="fill" style=${{ left: `${start}%`, width: `${share}%`, background: value < 0 ? "var(--negative)" : "var(--positive)" }}></div></div></div></td>`;
  };
  const line = (row) => {
    if (!panel.heads) return html`<tr>${row.map(cell)}</tr>`;
    const [layer, head] = row[0].split(".").map(Number),
      picked = layer === view.layer && head === view.head,
      shown = picked && open === row[0];
    return html`<tr class=${picked ? "picked" : ""}><td><button type="button" class="link" aria-label=${`show head ${row[0]}`} aria-expanded=${heads ? String(shown) : null} onClick=${() => {
      setOpen(open === row[0] ? "" : row[0]);
      set({ layer, head });
    }}>${row[0]}</button></td>${row.slice(1).map((value, c) => cell(value, c + 1))}</tr>
      ${shown && heads ? html`<${Detail} ...${{ heads, layer, head, pos: view.pos, columns: columns.length }} />` : null}`;
  };
  return html`<${Panel} title=${panel.title}>${panel.note ? html`<${Quiet}>${panel.note}<//>` : null}
    <div class="table"><table><thead><tr>${columns.map(header)}</tr></thead><tbody>${order.map(line)}</tbody></table></div><//>`;
}

function BarChart({ panel }) {
  const label = (name, k) =>
    panel.places ? html`<${Token} text=${name} /> ${panel.places[k]}` : panel.parts ? partName(name) : name;
  return html`<${Panel} title=${panel.title}>${panel.note ? html`<${Quiet}>${panel.note}<//>` : null}
    <${Bars} label=${panel.title} most=${panel.most ?? null} rows=${panel.labels.map((name, k) => ({ label: label(name, k), value: panel.values[k] ?? 0, name }))} /><//>`;
}

/** A small matrix with labelled rows and columns, signed or not; the largest entry is chosen at first. */
function SmallMatrix({ panel }) {
  const { data, shape } = panel.arrays.values,
    [rows, columns] = shape,
    size = (k) => (Number.isFinite(data[k]) ? Math.abs(data[k]) : -1);
  const [at, setAt] = useState(() => data.reduce((best, _, k) => (size(k) > size(best) ? k : best), 0));
  const names = useMemo(() => (panel.parts ? panel.rows.map(partName) : panel.rows), [panel]),
    shown = useMemo(() => (panel.places ? panel.columns.map(marked) : panel.columns), [panel]);
  return html`<${Panel} title=${panel.title}>${panel.note ? html`<${Quiet}>${panel.note}<//>` : null}
    <p><${Scale} low=${panel.ramp === "signed" ? `\u2212${three(panel.high)}` : "0"} high=${three(panel.high)} ramp=${panel.ramp} /></p>
    <${Matrix} label=${`${panel.title}; arrow keys move`} values=${data} rows=${rows} columns=${columns} ramp=${panel.ramp} high=${panel.high} tall=${rows > 60 ? 10 : 24} biggest=${columns < 8 ? 64 : 34} most=${1100} rowNames=${names} columnNames=${shown} selected=${[Math.floor(at / columns), at % columns]} onSelect=${(r, k) => setAt(r * columns + k)}
      describe=${(r, k, x) => html`${names[r]}${panel.between}${shown[k]}${panel.places ? ` ${panel.places[k]}` : ""}: <b>${three(x)}</b>`} /><//>`;
}

const Points = ({ panel }) =>
  html`<${Panel} title=${panel.title}><${Quiet}>${panel.note}<//><${Plane} points=${panel.points} /><//>`;

const Note = ({ panel }) => html`<${Panel} title=${panel.title}><${Quiet}>${panel.text}<//><//>`;

/** Paragraphs, and questions whose answers open. */
const Lesson = ({ panel }) =>
  html`<${Panel} title=${panel.title}>${panel.paragraphs.map((text) => html`<p>${text}</p>`)}
    ${panel.questions.map(([question, answer]) => html`<details class="question"><summary>${question}</summary><p>${answer}</p></details>`)}<//>`;

/** What draws a panel, by its kind. */
const PANELS = {
  tokens: Tokens,
  attention: Attention,
  lens: Lens,
  attribution: Attribution,
  table: Table,
  bars: BarChart,
  matrix: SmallMatrix,
  points: Points,
  note: Note,
  lesson: Lesson,
};

readRamps();
explainTerms();
const page = document.getElementById("page");
page.replaceChildren();
render(html`<${Page} />`, page);
