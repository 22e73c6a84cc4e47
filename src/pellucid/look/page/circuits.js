// The page Circuits: heads, neurons, embeddings and positions from the weights alone, without any text.

import { html, useMemo, useRef } from "./preact.js";
import { marked } from "./common.js";
import { getJson, route, useJson, useLoad } from "./api.js";
import { Choice, Num, Panel, Slider, Term, Toggle, Token, Waiting, plural, three, useRepaint, useWidth } from "./parts.js";
import { Bars, Lines, Scale, largest } from "./charts.js";
import { Canvas, Facts, HINT, Loaded, Matrix, Quiet, TokenField, inks } from "./matrix.js";
import { Plane } from "./plane.js";
import { addDefaults } from "./state.js";

addDefaults({
  weights: "attn",
  fold: false,
  offset: 1,
  shows: "copying",
  look: "",
  other_key: "",
  reads: "K",
  above: 3,
  neuron: 0,
  table: "embed",
  near: "",
  by_closeness: "cosine",
  every: false,
});

export const page = { name: "circuits", title: "Circuits", Page };

const numbered = (values) => values.map((_, k) => k);
const TokenBars = ({ label, rows, name, onToken, most }) =>
  html`<${Bars} label=${label} most=${most} rows=${rows.map(([text, value], k) => ({ label: html`<${Token} text=${text} onClick=${onToken && (() => onToken(text))} />`, value, name: `${name}.${k}` }))} />`;

function Page({ view, set, model, a, pos }) {
  const parts = {
      attn: "self-attention",
      ...(model.reads_source ? { encoder: "the encoder's", cross: "cross-attention" } : {}),
    },
    part = parts[view.weights] ? view.weights : "attn";
  const asked = { part, fold: view.fold, checkpoint: view.checkpoint || null },
    listing = { ...asked, every_token: view.every },
    known = useJson("api/w/listed").value,
    layers = part === "encoder" ? model.encoder_layers : model.n_layers;
  const table = useJson("api/w/heads", { ...asked, offset: view.offset }),
    heads = table.value?.part === part ? table.value : null,
    width = heads && layers ? heads.heads.length / layers : model.n_heads;
  const layer = Math.min(view.layer, Math.max(0, layers - 1)),
    head = Math.min(view.head, width - 1),
    usual = `#${a?.tokens[pos]?.id ?? 0}`; // the token chosen in the prompt
  const shared = { view, set, model, part, asked, listing, layers, table, heads, layer, head, width, usual };
  return html`<div><div class="row choose">${model.reads_source ? html`<${Choice} label="Which heads" value=${part} options=${parts} onChange=${(weights) => set({ weights })} />` : null}
      <${Toggle} label="norms' gains folded into the weights" value=${view.fold} onChange=${(fold) => set({ fold })} />
      ${known?.listed != null && known.listed < known.of ? html`<${Toggle} label=${`list all ${plural(known.of, "token")}, not only the ${known.listed.toLocaleString("en")} of the training text`} value=${view.every} onChange=${(every) => set({ every })} />` : null}
      ${heads?.rotated ? html`<${Slider} label="keys back, \u0394" value=${view.offset} min=${0} max=${Math.min(63, model.n_ctx - 1)} step=${1} onInput=${(offset) => set({ offset })} />` : null}</div>
    ${view.edits.length ? html`<${Quiet}>The edits above change activations, not weights: this page shows the model without them.<//>` : null}
    ${layers ? html`<div><${HeadTable} ...${shared} /><${LookUp} ...${shared} />${part === "cross" ? null : html`<${Distances} ...${shared} />`}<${HeadCard} ...${shared} /><${Composition} ...${shared} />${part === "cross" ? null : html`<${NeuronCard} ...${shared} />`}<${Positions} ...${shared} /></div>` : html`<${Quiet}>This network has no layers, so it has no heads and no neurons.<//>`}
    <${Embeddings} ...${shared} /></div>`;
}

// Heads --------------------------------------------------------------------------------------

const SHOWN = { copying: "copying score", ov_norm: "|W_OV|", qk_norm: "|W_QK|" };

function HeadTable({ view, set, table, heads, layers, layer, head, width }) {
  const { copying, ...norms } = SHOWN,
    kinds = heads?.copying_reason ? norms : SHOWN,
    shows = kinds[view.shows] ? view.shows : Object.keys(kinds)[0],
    signed = shows === "copying";
  const values = useMemo(() => Float64Array.from(heads?.heads ?? [], (row) => row[shows] ?? NaN), [heads, shows]),
    high = signed ? 1 : largest(values);
  return html`<${Loaded} id="heads" title="Every head by its weights" of=${table} value=${heads} what="reading every head's weights">
    ${() => html`<div class="row"><${Choice} label="What is drawn" value=${shows} options=${kinds} onChange=${(to) => set({ shows: to })} /><span class="push"></span><${Scale} low=${signed ? "\u22121" : "0"} high=${three(high)} ramp=${signed ? "signed" : "amount"} /></div>
    <${Matrix} name="heads" label="Heads: layers in rows" values=${values} rows=${layers} columns=${width} ramp=${signed ? "signed" : "amount"} high=${high} rowNames=${Array.from({ length: layers }, (_, k) => `layer ${k}`)} columnNames=${Array.from({ length: width }, (_, k) => `head ${k}`)} biggest=${44} most=${1000} selected=${[layer, head]} onSelect=${(l, h) => set({ layer: l, head: h })} describe=${(l, h, x) => `Head ${l}.${h}: ${kinds[shows]} ${three(x)}`} />
    <${Facts} rows=${Object.entries(kinds).map(([kind, words]) => [words, `head.${kind}`, heads.heads[layer * width + head][kind]])} />
    ${heads.copying_reason ? html`<${Quiet}>No copying score: ${heads.copying_reason}.<//>` : html`<${Quiet}><${Term} t="copying">Copying<//>: 1 where the head raises the logits of the tokens that it attends to, \u22121 where it lowers them (by the eigenvalues of W_U W_OV W_E).<//>`}`}
  <//>`;
}

function LookUp({ view, set, listing, layer, head, usual }) {
  const load = useJson(`api/w/head/${layer}/${head}/token`, {
      ...listing,
      token: view.look || usual,
      offset: view.offset,
    }),
    choose = (look) => set({ look });
  const bars = (value, name, label) =>
    value[name]
      ? html`<${TokenBars} label=${label} rows=${value[name]} name=${name} onToken=${choose} />`
      : html`<${Quiet}>${value[`${name}_reason`]}.<//>`;
  return html`<${Loaded} id="lookup" title=${`Head ${layer}.${head}: what it does with a token`} of=${load} what="reading the circuits" head=${html`<div class="row fields"><${TokenField} id="look" label="token" value=${view.look} placeholder=${load.value?.token.text ?? ""} onChange=${choose} /><span class="quiet screen">${HINT}</span></div>`}>
    ${(
      value,
    ) => html`<div class="beside even"><div><h3><${Term} t="OV circuit" />: when it attends to <${Token} text=${value.token.text} /> it promotes</h3>${bars(value, "promotes", "Promoted tokens")}</div>
      <div><h3><${Term} t="QK circuit" />: a query at <${Token} text=${value.token.text} /> looks for${value.offset === null ? "" : `, ${value.offset} back`}</h3>${bars(value, "looks_for", "Keys with the highest scores")}</div></div>`}
  <//>`;
}

function Distances({ view, set, asked, heads, layer, head, usual }) {
  const query = view.look || usual,
    load = useJson(`api/w/head/${layer}/${head}/distances`, { ...asked, query, key: view.other_key || query });
  return html`<${Loaded} id="distances" title="Its score by distance" of=${load} what="turning the query" head=${html`<div class="row fields"><${TokenField} id="other-key" label="key token" value=${view.other_key} placeholder=${marked(load.value?.key.text ?? "")} onChange=${(to) => set({ other_key: to })} /></div>`}>
    ${(value) => {
      const at = Math.min(view.offset, value.scores.length - 1),
        flat = value.scores.every((x) => x === value.scores[0]);
      return html`<${Quiet}>The score of a query at <${Token} text=${value.query.text} /> with a key at <${Token} text=${value.key.text} />, by how far back the key is.<//>
      <${Facts} rows=${[[`${at} back`, "distance.score", value.scores[at]]]} />${flat ? html`<${Quiet}>It is the same at every distance: positions enter this model through the stream, not between a query and a key.<//>` : html`<${Lines} label="Score by distance" xName="positions back" yName="score" series=${[{ name: "score", x: numbered(value.scores), y: value.scores }]} mark=${heads?.rotated ? at : null} onSelect=${(offset) => set({ offset })} />`}`;
    }}
  <//>`;
}

function HeadCard({ view, set, listing, layer, head }) {
  const load = useJson(`api/w/head/${layer}/${head}`, { ...listing, offset: view.offset }),
    tokens = (list) => list.map(([text]) => html`<${Token} text=${text} onClick=${() => set({ look: text })} />`);
  const directions = (value, of, into, out) =>
    html`<div><h3>Strongest directions of W_${of.toUpperCase()}${of === "qk" && value.offset !== null ? `, ${value.offset} back` : ""}</h3>${
      value[`${of}_directions`]
        ? html`<table class="directions"><thead><tr><th>strength</th><th>${into}</th><th>${out}</th></tr></thead><tbody>${value[`${of}_directions`].map((row, k) => html`<tr><td class="number"><${Num} name=${`${of}.direction.${k}`} value=${row.strength} /></td><td>${tokens(row.into)}</td><td>${tokens(row.out)}</td></tr>`)}</tbody></table>`
        : html`<${Quiet}>${value[`${of}_reason`]}.<//>`
    }</div>`;
  return html`<${Loaded} id="head-card" title=${`Head ${layer}.${head}: spectra and directions`} of=${load} what="computing the spectra">
    ${(
      value,
    ) => html`<div class="beside even"><div><h3><${Term} t="singular values">Singular values<//></h3><${Lines} label="Singular values" xName="number" series=${["ov", "qk"].map((of) => ({ name: `W_${of.toUpperCase()}`, x: value[of].map((_, k) => k + 1), y: value[of] }))} height=${200} />
        <${Facts} one=${true} rows=${["ov", "qk"].map((of) => [`W_${of.toUpperCase()} largest`, `${of}.0`, value[of][0]])} /></div>
      <div>${value.eigenvalues ? html`<h3>Eigenvalues of W_U W_OV W_E: copying score <${Num} name="card.copying" value=${value.copying} /></h3><${Plane} points=${value.eigenvalues} />` : html`<${Quiet}>${value.ov_reason}.<//>`}</div></div>
      <div class="beside even">${directions(value, "ov", "it reads", "it promotes")}${directions(value, "qk", "as keys", "as queries")}</div>`}
  <//>`;
}

// Composition --------------------------------------------------------------------------------

const READS = { Q: "queries", K: "keys", V: "values" };

function Composition({ view, set, part, asked, layers, heads, layer, head, width }) {
  const kind = READS[view.reads] ? view.reads : "K",
    reason =
      part === "cross"
        ? "Composition needs heads that read and write one stream: cross-attention reads the encoder's."
        : layers < 2
          ? "There is no pair of heads in different layers."
          : null;
  const load = useJson(reason ? null : `api/w/compose/${kind}`, {
    ...asked,
    offset: heads?.rotated && kind !== "V" ? view.offset : null,
  });
  const tools = html`<${Choice} label="Composition of" value=${kind} options=${READS} onChange=${(to) => set({ reads: to })} />`,
    title = "Which heads read which";
  if (reason)
    return html`<${Panel} id="composition" title=${title} tools=${tools}><${Quiet} why="composition">${reason}<//><//>`;
  return html`<${Loaded} id="composition" title=${title} tools=${tools} of=${load} what="composing every pair of heads">
    ${(value) => {
      const least = value.baseline + view.above * value.spread,
        edges = value.top.filter((edge) => edge.score >= least),
        mine = edges.filter((edge) => [edge.writer, edge.reader].some(([l, h]) => l === layer && h === head)),
        name = (edge) => `${edge.writer.join(".")} \u2192 ${edge.reader.join(".")}`;
      return html`<${Quiet}><${Term} t="composition">Composition<//>: an edge where the ${READS[kind]} of a later head${value.offset === null ? "" : `, ${value.offset} back,`} depend on what an earlier head writes more than those of random heads of these shapes: <${Num} name="compose.baseline" value=${value.baseline} /> \u00b1 <${Num} name="compose.spread" value=${value.spread} /> (the grey band is twice that).<//>
        <${Slider} label="at least" value=${view.above} min=${0} max=${60} step=${0.5} said=${`${view.above} spreads above random, ${three(least)}`} onInput=${(above) => set({ above })} />
        <div class="beside even"><${Graph} ...${{ edges, layers, width, least }} selected=${[layer, head]} onSelect=${([l, h]) => set({ layer: l, head: h })} />
          <div><${Lines} label="Scores of the strongest pairs" xName="pair, strongest first" yName="score" height=${200} band=${{ low: value.baseline - 2 * value.spread, high: value.baseline + 2 * value.spread, name: "random" }} series=${[{ name: "pairs", x: value.top.map((_, k) => k + 1), y: value.top.map((edge) => edge.score) }]} />
            <h3>${mine.length ? `The edges of head ${layer}.${head}` : "The strongest edges"}</h3><${Bars} label="Edges" most=${value.top[0]?.score} rows=${(mine.length ? mine : edges).slice(0, 8).map((edge) => ({ label: name(edge), value: edge.score, name: `compose.${name(edge)}` }))} /></div></div>
        <${Quiet}>${edges.length === 200 ? "The 200 strongest pairs are drawn." : `Drawn: ${plural(edges.length, "pair")}.`}<//>`;
    }}
  <//>`;
}

/** Heads as points, layers from the bottom up, edges from writers to readers. */
function Graph({ edges, layers, width, least, selected, onSelect }) {
  const box = useRef(),
    wide = Math.min(620, useWidth(box, 520)),
    step = Math.max(30, Math.min(64, 420 / layers)),
    high = step * (layers - 1) + 76;
  const left = 44,
    across = (wide - left - 4) / width,
    x = (h) => left + across * (h + 0.5),
    y = (l) => high - 52 - l * step;
  const draw = (pen, ink, over) => {
    const at = String(over ?? selected),
      most = edges[0]?.score ?? 1,
      touches = (edge) => String(edge.writer) === at || String(edge.reader) === at;
    for (const strong of [false, true])
      for (const edge of edges.filter((one) => touches(one) === strong)) {
        const [[l, h], [m, k]] = [edge.writer, edge.reader],
          u = (edge.score - least) / (most - least || 1);
        pen.globalAlpha = strong ? 0.35 + 0.65 * u : 0.06 + 0.3 * u;
        pen.lineWidth = 0.7 + 2.4 * u;
        pen.strokeStyle = strong ? ink.accent : ink.quiet;
        pen.beginPath();
        pen.moveTo(x(h), y(l));
        pen.bezierCurveTo(x(h), y(l) - step * 0.5, x(k), y(m) + step * 0.5, x(k), y(m));
        pen.stroke();
      }
    pen.globalAlpha = 1;
    pen.fillStyle = ink.quiet;
    pen.textAlign = "center";
    pen.fillText("head", left + (across * width) / 2, high - 8);
    for (let h = 0; h < width; h += Math.ceil(18 / across)) pen.fillText(String(h), x(h), high - 26);
    pen.save();
    pen.translate(8, (y(0) + y(layers - 1)) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("layer", 0, 0);
    pen.restore();
    pen.textAlign = "left";
    const named = new Set(
      across >= 34
        ? null
        : [at, ...edges.filter(touches).flatMap((edge) => [String(edge.writer), String(edge.reader)])],
    );
    for (let l = 0; l < layers; l++) {
      pen.fillStyle = ink.quiet;
      pen.fillText(String(l), 20, y(l));
      for (let h = 0; h < width; h++) {
        const one = `${l},${h}` === at;
        pen.fillStyle = one ? ink.accent : ink.text;
        pen.beginPath();
        pen.arc(x(h), y(l), one ? 6 : 3.4, 0, 7);
        pen.fill();
        if (across >= 34 || named.has(`${l},${h}`)) pen.fillText(`${l}.${h}`, x(h) + 7, y(l) - 8);
      }
    }
  };
  const hit = (px, py) => {
    const l = Math.round((high - 52 - py) / step),
      h = Math.round((px - left) / across - 0.5);
    return l >= 0 && l < layers && h >= 0 && h < width ? [l, h] : null;
  };
  return html`<figure class="drawn" ref=${box}><${Canvas} width=${wide} height=${high} draw=${draw} hit=${hit} onPick=${onSelect} name="composition" label="Heads as points, layers from the bottom up, with edges from the head that writes to the head that reads" said=${(over) => over && `Head ${over.join(".")}`} /></figure>`;
}

// Neurons ------------------------------------------------------------------------------------

const NumberField = ({ id, label, value, most, onChange }) =>
  html`<label class="number-field" for=${id}>${label} <input id=${id} type="number" min="0" max=${most} value=${value} onChange=${(
    event,
  ) => {
    const to = Number(event.target.value);
    if (Number.isInteger(to) && to >= 0 && to <= most) onChange(to);
    else event.target.value = value;
  }} /></label>`;

function NeuronCard({ view, set, listing, layer, layers }) {
  const load = useJson(`api/w/neuron/${layer}/${view.neuron}`, listing),
    columns = {
      key: "Its key: the tokens that it fires on",
      gate: "Its gate: the tokens that open it",
      value: "Its value: the tokens whose logits it raises",
    };
  return html`<${Loaded} id="neuron" title=${`Neuron ${view.neuron} of layer ${layer} as a memory`} of=${load} what="reading the neuron" tools=${html`<${NumberField} id="neuron-layer" label="layer" value=${layer} most=${layers - 1} onChange=${(to) => set({ layer: to })} /><${NumberField} id="neuron-number" label="neuron" value=${view.neuron} most=${(load.value?.neurons ?? 1e9) - 1} onChange=${(neuron) => set({ neuron })} />`}>
    ${(value) =>
      value.reason
        ? html`<${Quiet} why="neuron">${value.reason}<//>`
        : html`<div class="beside even">${Object.entries(columns)
            .filter(([name]) => value[name] || value[`${name}_reason`])
            .map(
              ([name, words]) =>
                html`<div><h3>${words}</h3>${value[name] ? html`<${TokenBars} label=${words} rows=${value[name].slice(0, 8)} name=${`neuron.${name}`} />` : html`<${Quiet}>${value[`${name}_reason`]}.<//>`}</div>`,
            )}</div>
      <${Facts} one=${true} rows=${[
        ["length of the key", "neuron.key_norm", value.key_norm],
        ["of the value", "neuron.value_norm", value.value_norm],
      ]}><span class="quiet">${value.neurons} neurons in each layer</span><//>`}
  <//>`;
}

// Positions ----------------------------------------------------------------------------------

function Positions({ view, set, model, part, asked, layer }) {
  const most = Math.min(63, model.n_ctx - 1),
    distance = Math.min(view.offset, most),
    load = useJson("api/w/positions", { ...asked, layer, distance });
  const rows = useLoad(
    load.value?.view === "rows"
      ? (signal) => getJson(route("api/w/positions/rows", asked), signal).then(({ arrays }) => arrays.rows)
      : null,
    [load.value?.view, part, asked.checkpoint],
  );
  const slider = html`<${Slider} label="\u0394, positions back" value=${distance} min=${0} max=${most} step=${1} onInput=${(offset) => set({ offset })} />`;
  return html`<${Loaded} id="positions" title="How order enters" of=${load} what="reading the positions">
    ${(value) => html`${value.reason ? html`<${Quiet} why="positions">${value.reason}<//>` : null}
      ${value.view === "rows" ? html`<${Quiet}>Cosines between the rows that ${value.kind} positions add to the stream.<//><${Waiting} of=${rows} what="comparing positions" />${rows.value ? html`<${Similarities} of=${rows.value} /><${Scale} low="\u22121" high="1" ramp="signed" />` : null}` : null}
      ${
        value.angles
          ? html`<${Quiet}>Layer ${value.layer} turns each plane of a query against a key ${distance} back by its own angle; the first planes turn fastest.${value.unrotated ? ` ${value.unrotated} coordinates are not turned.` : ""}<//>${slider}<${Dials} angles=${value.angles} />
        <${Facts} rows=${[
          ["mean cosine of the angles", "positions.mean_cosine", value.mean_cosine],
          ["first plane", "positions.angle.0", value.angles[0], "rad"],
        ]} />`
          : null
      }
      ${
        value.bias
          ? html`<${Quiet}>What layer ${value.layer} adds to the score of a key, by how far back it is, for each head.<//>${slider}<${Lines} label="Bias by distance" xName="positions back" yName="added" series=${value.bias.map((row, h) => ({ name: `head ${h}`, x: numbered(row), y: row }))} mark=${distance} />
        <${Facts} one=${true} rows=${value.bias.slice(0, 6).map((row, h) => [`head ${h} at ${distance}`, `positions.bias.${h}`, row[distance]])} />`
          : null
      }`}
  <//>`;
}

function Similarities({
  of: {
    data,
    shape: [n],
  },
}) {
  const names = Array.from({ length: n }, (_, k) => String(k));
  return html`<${Matrix} name="positions" label="Cosines between positions" values=${data} rows=${n} columns=${n} ramp="signed" high=${1} rowNames=${names} columnNames=${names} most=${460} describe=${(r, k, x) => html`positions ${r} and ${k}: cosine <b>${three(x)}</b>`} />`;
}

/** A dial for each plane, whose hand stands at its angle. */
function Dials({ angles }) {
  const box = useRef(),
    wide = useWidth(box, 700),
    size = 36,
    across = Math.max(1, Math.floor(wide / size)),
    r = size / 2 - 4;
  const draw = (pen, ink) =>
    angles.forEach((angle, k) => {
      const x = (k % across) * size + size / 2,
        y = Math.floor(k / across) * size + size / 2;
      pen.strokeStyle = ink.line;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.arc(x, y, r, 0, 7);
      pen.stroke();
      pen.strokeStyle = ink.accent;
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + r * Math.cos(angle), y - r * Math.sin(angle));
      pen.stroke();
    });
  return html`<figure class="drawn" ref=${box}><${Canvas} width=${wide} height=${Math.ceil(angles.length / across) * size} draw=${draw} name="dials" label="The angle of each plane" /></figure>`;
}

// Embeddings ---------------------------------------------------------------------------------

function Embeddings({ view, set, model, usual }) {
  const { readout } = model.architecture,
    tables = {
      embed: "W_E, what tokens are",
      ...(readout === "none" ? {} : { unembed: "W_U, what is read out" }),
      ...(model.architecture.positions.kind === "learned" ? { positions: "positions" } : {}),
    };
  const table = tables[view.table] ? view.table : "embed",
    checkpoint = view.checkpoint || null,
    about = useJson(`api/w/embed/${table}`, { checkpoint }),
    info = about.value?.of === table ? about.value : null;
  const plane = useLoad(
    (signal) =>
      getJson(route(`api/w/embed/${table}/plane`, { checkpoint }), signal).then(({ arrays }) => ({
        ...arrays.plane,
        table,
      })),
    [table, checkpoint],
  );
  const near = useJson(`api/w/embed/${table}/neighbours`, {
    token: view.near || (table === "positions" ? "#0" : usual),
    by: view.by_closeness,
    checkpoint,
    every_token: view.every,
  });
  return html`<${Loaded} id="embeddings" title="Embeddings" of=${near} what="comparing rows" before=${info?.code} tools=${html`<${Choice} label="Which table" value=${table} options=${tables} onChange=${(to) => set({ table: to, near: "" })} />`}
      head=${html`<div class="row fields"><${TokenField} id="near" label=${table === "positions" ? "row" : "token"} value=${view.near} placeholder=${marked(near.value?.token.text ?? "")} onChange=${(to) => set({ near: to })} /><${Choice} label="Near by" value=${view.by_closeness} options=${{ cosine: "cosine", product: "product", distance: "distance" }} onChange=${(to) => set({ by_closeness: to })} /></div><${Waiting} of=${about} what="computing the plane" /><${Waiting} of=${plane} what="drawing the rows" />`}>
    ${(
      value,
    ) => html`<div class="beside even"><div><h3>Nearest to <${Token} text=${value.token.text} />, by ${value.by}</h3><${TokenBars} label="Neighbours" rows=${value.neighbours} most=${value.by === "cosine" ? 1 : null} name="neighbour" onToken=${table === "positions" ? null : (text) => set({ near: text })} /></div>
      <div>${
        plane.value?.table === table && info
          ? html`<h3>First two principal components</h3><${Cloud} points=${plane.value} texts=${info.texts} chosen=${value.token.id} onSelect=${(id) => set({ near: `#${id}` })} />
        <${Facts} rows=${[["share of the variance", "embedding.share", info.share]]} /><${Quiet}>${info.not_shown}<//>
        <${Lines} label="Spectrum of the table" xName="component" yName="singular value" height=${140} series=${[{ name: "", x: info.spectrum.map((_, k) => k + 1), y: info.spectrum }]} />`
          : null
      }</div></div>`}
  <//>`;
}

/** A point for every row of a table; the one under the pointer is named. */
function Cloud({
  points: {
    data,
    shape: [n],
  },
  texts,
  chosen,
  onSelect,
}) {
  const box = useRef(),
    repaint = useRepaint(),
    wide = Math.min(560, useWidth(box, 480)),
    high = Math.round(wide * 0.72);
  const most = useMemo(() => [0, 1].map((axis) => 1.05 * largest(data.filter((_, k) => k % 2 === axis))), [data]);
  const x = (k) => wide / 2 + (data[2 * k] / most[0]) * (wide / 2 - 6),
    y = (k) => high / 2 - (data[2 * k + 1] / most[1]) * (high / 2 - 6);
  const cloud = useMemo(() => {
    // the points are painted once; the pointer moves over that picture
    const scale = devicePixelRatio || 1,
      picture = new OffscreenCanvas(Math.max(1, wide * scale), Math.max(1, high * scale)),
      pen = picture.getContext("2d"),
      size = n > 5000 ? 1.5 : n > 500 ? 2.5 : 4;
    pen.scale(scale, scale);
    pen.fillStyle = inks().positive;
    pen.globalAlpha = n > 5000 ? 0.35 : 0.6;
    for (let k = 0; k < n; k++) pen.fillRect(x(k) - size / 2, y(k) - size / 2, size, size);
    return picture;
  }, [data, wide, high, repaint]);
  const draw = (pen, ink, over) => {
    pen.strokeStyle = ink.line;
    pen.strokeRect(0.5, 0.5, wide - 1, high - 1);
    pen.drawImage(cloud, 0, 0, wide, high);
    pen.font = `12px ${ink.mono}`;
    for (const [k, colour] of [
      [chosen, ink.accent],
      [over, ink.text],
    ]) {
      if (k === null || k >= n) continue;
      const text = marked(texts[k]),
        side = x(k) + 10 + pen.measureText(text).width > wide ? -8 : 8;
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(x(k), y(k), 4.5, 0, 7);
      pen.fill();
      pen.textAlign = side < 0 ? "right" : "left";
      pen.strokeStyle = ink.raised;
      pen.lineWidth = 3;
      pen.strokeText(text, x(k) + side, y(k));
      pen.fillText(text, x(k) + side, y(k));
    }
  };
  const hit = (px, py) => {
    let best = null,
      least = 20 ** 2;
    for (let k = 0; k < n; k++) {
      const d = (x(k) - px) ** 2 + (y(k) - py) ** 2;
      if (d < least) {
        least = d;
        best = k;
      }
    }
    return best;
  };
  return html`<figure class="drawn" ref=${box}><${Canvas} width=${wide} height=${high} draw=${draw} hit=${hit} onPick=${onSelect} name="cloud" label="Every row on the first two principal components" /></figure>`;
}
