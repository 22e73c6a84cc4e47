// The page Stream: what the stream would predict at every point, tokens followed through it, who wrote a logit, lengths.

import { html, useMemo, useState } from "./preact.js";
import { marked } from "./common.js";
import { getJson, route, useJson, useLines, useLoad } from "./api.js";
import { Choice, CopyButton, Num, Term, Toggle, Token, Waiting, percent, three } from "./parts.js";
import { Bars, Lines, Scale, Waterfall, largest } from "./charts.js";
import { LensCell, LensGrid, STATS, counted, pointName, ramped } from "./trace_panels.js";
import { Facts, HINT, Loaded, Matrix, Quiet, TokenField, partName } from "./matrix.js";
import { addDefaults } from "./state.js";

addDefaults({ stat: "probability", mid: false, point: -1, pins: [], split: [], trail: "rank" });

export const page = { name: "stream", title: "Stream", needs: "trace", Page };

function Page({ view, set, model, a, pos }) {
  const shared = { view, set, model, a, pos };
  return html`${a.predicts ? html`${model.n_layers ? html`<${Lens} ...${shared} />` : null}<${Logit} ...${shared} />` : html`<section class="panel"><p>This model has no readout: its stream is not turned into a prediction, so there is no lens and no logit to split.</p></section>`}<${Norms} ...${shared} />`;
}

// The lens -----------------------------------------------------------------------------------

function Lens({ view, set, model, a, pos }) {
  const path = route(`api/t/${a.id}/stream/lens`, { mid: view.mid }),
    stat = STATS[view.stat] ? view.stat : "probability";
  const load = useLines(path, null, (_, line) => (line.arrays ? { ...line, ...line.arrays, path } : line), [path]),
    done = load.value?.of ? `, ${load.value.done} of ${load.value.of} points` : "";
  const lens = load.value?.path === path ? load.value : null,
    last = lens ? lens.points.length - 1 : 0,
    point = view.point < 0 || view.point > last ? last : view.point;
  const ramp = useMemo(() => lens && ramped(lens, stat, model.n_vocab), [lens, stat]);
  return html`<${Loaded} id="lens" title="What the stream would predict" of=${load} value=${lens} what=${`reading the stream${done}`} before=${a.code} tools=${html`<${Toggle} label="between attention and MLP" value=${view.mid} onChange=${(mid) => set({ mid, point: -1 })} />`}
      head=${html`<${Quiet}>Each cell: the likeliest token if the network ended there (the <${Term} t="logit lens" />). Rows are points of the <${Term} t="residual stream" />, from the embedding up to the last layer.<//>
      <div class="row"><span class="quiet">Colour</span><${Choice} label="Colour" value=${stat} options=${STATS} onChange=${(to) => set({ stat: to })} /><span class="push"></span>${ramp ? html`<${Scale} low=${ramp.low} high=${ramp.high} />` : null}</div>`}>
    ${() => html`<${LensGrid} ...${{ lens, ramp, stat }} at=${[point, pos]} onSelect=${([p, i]) => set({ point: p, pos: i })} /><${Cell} ...${{ view, set, a, lens, point, pos }} />`}
  <//>`;
}

/** The chosen cell: its likeliest tokens, its numbers, and the pinned tokens' way through the stream. */
function Cell({ view, set, a, lens, point, pos }) {
  const target = lens.target[pos],
    { trail } = view;
  const usual = [...new Set([target, ...a.top[pos].slice(0, 3).map((one) => one.id)])].filter((id) => id !== null),
    pins = view.pins.length ? view.pins : usual;
  const pin = (id) => set({ pins: pins.includes(id) ? pins.filter((one) => one !== id) : [...pins, id].slice(-6) });
  const followed = useJson(`api/t/${a.id}/stream/follow`, {
      tokens: JSON.stringify(pins.map((id) => `#${id}`)),
      pos,
      mid: view.mid,
    }),
    value = followed.value;
  const series = value?.tokens.map((token, j) => ({
    name: marked(token.text),
    x: value.points.map((_, p) => p),
    y: value.points.map((_, p) => (trail === "rank" ? value.rank[p][j] + 1 : value.probability[p][j])),
  }));
  return html`<div class="beside even"><div><${LensCell} ...${{ lens, point, pos }} pinned=${pins} onToken=${pin} /></div>
    <div><div class="head"><h3>Tokens followed through the stream</h3><${Choice} label="What is followed" value=${trail} options=${{ rank: "rank", probability: "probability" }} onChange=${(to) => set({ trail: to })} /></div>
      <${Waiting} of=${followed} what="following tokens" />
      ${
        series
          ? html`<div class="row">${value.tokens.map((token) => html`<${Token} text=${token.text} selected=${true} onClick=${() => pin(token.id)} title="No longer follow this token" />`)}</div>
        <${Lines} label="The followed tokens at every point" xName="point" yName=${trail} series=${series} logY=${trail === "rank"} mark=${point} onSelect=${(p) => set({ point: p })} />
        <p class="row figures">${value.tokens.map((token, j) => html`<span><${Token} text=${token.text} /> rank <${Num} name=${`follow.rank.${token.id}`} value=${value.rank[point] ? value.rank[point][j] + 1 : null} said=${counted} />, <${Num} name=${`follow.probability.${token.id}`} value=${value.probability[point]?.[j] ?? null} said=${percent} /></span>`)}<span class="quiet">Rank 1 is the likeliest (0 in Python).</span></p>`
          : null
      }</div></div>`;
}

// Who wrote a logit --------------------------------------------------------------------------

function Logit({ view, set, a, pos }) {
  const [first, second] = a.top[pos],
    [order, setOrder] = useState("computed"),
    token = view.target || `#${first.id}`;
  const vs = view.against || (view.target || !second ? "" : `#${second.id}`),
    asked = { token, vs, pos },
    sum = useJson(`api/t/${a.id}/stream/logit`, asked);
  const open = (depth, label) =>
    html`<button type="button" class="link" aria-expanded=${view.split[depth] === label ? "true" : "false"} onClick=${() => set({ split: view.split[depth] === label ? view.split.slice(0, depth) : [...view.split.slice(0, depth), label] })}>${partName(label)}</button>`;
  return html`<${Loaded} id="logit" title="Who wrote this logit?" of=${sum} what="splitting the logit" before=${a.code} tools=${html`<${Choice} label="Order" value=${order} options=${{ computed: "as computed", size: "largest first" }} onChange=${setOrder} />`}
      head=${html`<${Quiet}><${Term} t="direct logit attribution" />: what each part wrote, seen by the readout.<//><div class="row fields"><${TokenField} id="target" label="token" value=${view.target} placeholder=${marked(first.text)} onChange=${(target) => set({ target, split: [] })} />
      <${TokenField} id="against" label="less the logit of" value=${view.against} placeholder=${view.target ? "no other token" : second ? marked(second.text) : ""} onChange=${(against) => set({ against, split: [] })} /><span class="quiet screen">${HINT}</span></div>`}>
    ${(panel) => {
      const rows = panel.parts.map((row) => ({
        label: row.split ? open(0, row.label) : partName(row.label),
        value: row.value,
        selected: view.split[0] === row.label,
        name: `logit.${row.label}`,
      }));
      if (order === "size") rows.sort((p, q) => Math.abs(q.value) - Math.abs(p.value));
      return html`<p class="row figures"><span>${panel.vs !== null ? html`The logit of <${Token} text=${panel.token} /> less that of <${Token} text=${panel.vs} />` : html`The logit of <${Token} text=${panel.token} />`} after <${Token} text=${panel.tokens[panel.position]} /> at ${panel.position} is <${Num} name="logit.value" value=${panel.logit} unit="logits" />${panel.after_cap === null ? "" : html`, <${Num} name="logit.after_cap" value=${panel.after_cap} /> after the cap`}.</span></p>
        ${panel.note ? html`<${Quiet}>Exact, and to be read with this: ${panel.note}.<//>` : null}
        <div class="beside even"><${Waterfall} label="logit" total=${panel.total} rows=${rows} />
          <div>${view.split.length ? view.split.map((label, depth) => html`<${Split} key=${label} ...${{ a, asked, label, view, depth, open }} />`) : html`<p class="quiet screen">Choose an attention or an MLP to see which of its heads or neurons wrote, and a head to see from which token it read.</p>`}</div></div>`;
    }}
  <//>`;
}

function Split({ a, asked, label, view, depth, open }) {
  const path = route(`api/t/${a.id}/stream/logit/part`, { ...asked, label }),
    part = useLoad((signal) => getJson(path, signal).then((found) => ({ ...found, id: a.id })), [path]);
  const value = part.value?.id === a.id ? part.value : null,
    words = { head: "by head", source: "by the token that it read", neuron: "by neuron", expert: "by expert" };
  const read = label.includes(".cross.") ? a.source : a.tokens;
  const name = (row) => {
    const source = row.label.match(/ <- (\d+)$/)?.[1];
    return row.split
      ? open(depth + 1, row.label)
      : source === undefined
        ? partName(row.label)
        : html`<${Token} text=${read[source].text} special=${read[source].special} /> ${source}`;
  };
  return html`<section class="split" aria-label=${`${partName(label)} in parts`}><${Waiting} of=${part} what="splitting it" />
    ${
      value
        ? html`<div class="head"><h3>${partName(label)} ${words[value.by]}: <${Num} name=${`split.${label}`} value=${value.sum} /></h3><${CopyButton} code=${`${a.code}\n${value.code}`} /></div>
      <${Bars} label=${`Parts of ${label}`} rows=${value.parts.map((row) => ({ label: name(row), value: row.value, selected: view.split[depth + 1] === row.label, name: `split.${label}.${row.label}` }))} />`
        : null
    }</section>`;
}

// Lengths ------------------------------------------------------------------------------------

function Norms({ a, pos, set }) {
  const norms = useLoad(
      (signal) =>
        getJson(`api/t/${a.id}/stream/norms`, signal).then((panel) => ({ ...panel, ...panel.arrays, id: a.id })),
      [a.id],
    ),
    value = norms.value?.id === a.id ? norms.value : null;
  const n = value?.tokens.length,
    at = (array, j) => array.data[j * n + pos];
  const line = (name, names, array) => ({
    name,
    x: names.map(([one]) => depthOf(one)),
    y: names.map(([, j]) => at(array, j)),
  });
  return html`<${Loaded} id="norms" title="How long the vectors are" of=${norms} value=${value} what="measuring the stream" before=${a.code}>
    ${() => {
      const points = value.points.map((name, j) => [name, j]),
        writes = value.writes.map((name, j) => [name, j]),
        of = (end) => writes.filter(([name]) => name.endsWith(`.${end}`));
      const series = [
        line("stream", points, value.stream),
        line("attention", of("attn_out"), value.lengths),
        line("cross-attention", of("cross_out"), value.lengths),
        line("MLP", of("mlp_out"), value.lengths),
      ].filter((one) => one.x.length);
      return html`<${Quiet}>The length of the stream after each part, and of what each attention and MLP adds to it, at <${Token} text=${value.tokens[pos]} /> (${pos}).<//>
        <${Lines} label="Lengths by depth" xName="layer" yName="length" series=${series} />
        <${Facts} one=${true} rows=${[...writes.slice(0, 4).map(([name, j]) => [partName(name), `norm.${name}`, at(value.lengths, j)]), ["the stream at the end", "norm.end", points.length ? at(value.stream, points.length - 1) : null]]} />
        ${points.length ? html`<h3>The stream at every position</h3><${Matrix} name="norms" label="Length of the stream: points in rows, positions in columns" values=${value.stream.data} rows=${points.length} columns=${n} high=${largest(value.stream.data)} rowNames=${value.points.map(pointName)} columnNames=${value.tokens.map(marked)} most=${1100} biggest=${40} onSelect=${(_, i) => set({ pos: i })} describe=${(r, k, x) => `${pointName(value.points[r])} at ${k}: ${three(x)}`} />` : null}`;
    }}
  <//>`;
}

/** Where a point or a write stands, in layers: the embedding at 0, the end of layer l at l + 1. */
function depthOf(name) {
  const [, layer, what] = name.split(".");
  return Number(layer) + (what === "resid_pre" ? 0 : what === "resid_post" || what === "mlp_out" ? 1 : 0.5);
}
