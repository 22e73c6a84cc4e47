// The page Tokens: how the text was cut into tokens, how well each was expected, and what n-grams expected of it.

import { html } from "./preact.js";
import { route, useLines } from "./api.js";
import { Scale, TopBars } from "./charts.js";
import { colourOf, marked } from "./common.js";
import { addDefaults } from "./state.js";
import { CopyButton, Num, Panel, Term, Token, Waiting, percent, alike, three, useRepaint } from "./parts.js";
import {
  Merges,
  NgramBars,
  NgramToggle,
  Progress,
  foldLines,
  hexPairs,
  readable,
  useNgrams,
  usePieces,
} from "./text_parts.js";

addDefaults({ written: -1 });

export const page = { name: "tokens", title: "Tokens", needs: "trace", Page };

/** The rows of a long text that are drawn at once, around the selected position. */
const MOST_ROWS = 120;
const MOST_BITS = 16;

function Page({ view, set, model, a, b, pos }) {
  const pieces = usePieces(a),
    { progress, facts } = useNgrams(view, a, Math.max(0, pos - 1)),
    shared = { view, set, model, a, b, pos, progress, ngrams: facts };
  return html`<div class="tokens">
    <${Pieces} a=${a} pos=${pos} pieces=${pieces} set=${set} />
    ${a.surprisal ? html`<${Expected} ...${shared} />` : null}
    ${a.predicts ? html`<${Guess} ...${shared} />` : null}
    ${model.masked || model.reads_source ? null : html`<${Written} view=${view} set=${set} a=${a} />`}
  </div>`;
}

// Text, bytes, merges --------------------------------------------------------------------------

function Pieces({ a, pos, pieces, set }) {
  const { value } = pieces;
  const run = (k) => value?.characters.find(([first, last]) => k >= first && k <= last);
  const boxes = [];
  for (let k = 0; k < a.n; k++) {
    const shared = run(k),
      last = shared ? shared[1] : k;
    boxes.push({ first: k, last, shared });
    k = last;
  }
  const near = boxes.filter((box) => a.n <= 2 * MOST_ROWS || Math.abs(box.first - pos) < MOST_ROWS);
  return html`<${Panel} title="From text to tokens" id="pieces" code=${`${a.code}\n[(id, model.tokenizer.token_bytes(id)) for id in trace.ids[0].tolist()]`} not="how often each piece occurs in the training text, which is why the tokenizer learned it.">
    <p>${a.n} <${Term} t="token">tokens<//>, each with its id and its <${Term} t="bytes" />. A frame around several tokens is one character that was split.${near.length < boxes.length ? ` Drawn are those around position ${pos}.` : ""}</p>
    <${Waiting} of=${pieces} />
    <div class="pieces">${near.map(
      (box) => html`<span class=${box.shared ? "character" : ""}>${Array.from(
        { length: box.last - box.first + 1 },
        (_, j) => box.first + j,
      ).map(
        (k) => html`<span class="piece">
      <${Token} text=${a.tokens[k].text} special=${a.tokens[k].special} selected=${k === pos} onClick=${() => set({ pos: k })} />
      <small data-name=${`id.${k}`} data-value=${a.tokens[k].id}>${a.tokens[k].id}</small><small>${value ? hexPairs(value.bytes[k]).slice(0, 6).join(" ") + (value.bytes[k].length > 12 ? " \u2026" : "") : ""}</small></span>`,
      )}
      ${box.shared ? html`<small>one character: ${readable(value.bytes.slice(box.first, box.last + 1).join(""))}</small>` : null}</span>`,
    )}</div>
    ${value ? html`<${Merges} value=${value} pos=${pos} />` : null}
  <//>`;
}

// How well each token was expected ---------------------------------------------------------------

function Expected({ view, set, a, b, pos, ngrams, progress }) {
  useRepaint();
  const orders = ngrams?.bits ? Object.keys(ngrams.bits) : [];
  const first = Math.max(0, Math.min(pos - MOST_ROWS / 2, a.n - MOST_ROWS)),
    rows = Array.from({ length: Math.min(a.n, MOST_ROWS) }, (_, k) => first + k);
  const code = [a.code, ngrams?.code, "own_bits = trace.surprisal()[0]  # of each token after the first"]
    .filter(Boolean)
    .join("\n");
  // the bits of the model and of n-grams are compared with each other, entropies among themselves
  const bitsOf = alike(rows.flatMap((k) => [a.surprisal[k], ...orders.map((name) => ngrams.bits[name][k])])),
    entropyOf = alike(rows.map((k) => (k ? a.entropy[k - 1] : null)));
  const mean = (list) => {
    const known = list.filter((x) => x !== null);
    return known.length ? known.reduce((s, x) => s + x, 0) / known.length : null;
  };
  return html`<${Panel} title="How expected was each token?" id="surprisal" code=${code} not="what in the context made a token expected: Stream and Attention show that.">
    <p>The <${Term} t="surprisal" /> of each token, given the ones before it: on average <${Num} name="mean_surprisal" value=${a.mean_surprisal} /> bits. ${orders.length ? orders.map((name) => html`<${Term} t=${name} /> ${three(mean(ngrams.bits[name]))} bits. `) : ""}
      ${b?.mean_surprisal != null ? html`Prompt B: <${Num} name="b.mean_surprisal" value=${b.mean_surprisal} /> bits.` : ""}</p>
    <div class="row"><${NgramToggle} view=${view} set=${set} /><${Scale} low="0 bits" high=${`${MOST_BITS} bits`} /></div>
    <${Progress} of=${progress} />
    <div class="wide"><table class="expected"><thead><tr><th>position</th><th>token</th><th class="bitbar">bits</th><th></th><th><${Term} t="rank" /></th><th><${Term} t="entropy" />, bits</th>${orders.map((name, j) => html`<th style=${{ color: `var(--line-${j + 2})` }}><${Term} t=${name} />, bits</th>`)}</tr></thead>
      <tbody>${rows.map((k) => {
        const bits = a.surprisal[k],
          entropy = k ? a.entropy[k - 1] : null;
        return html`<tr class=${k === pos ? "here" : ""} title=${
          k
            ? `expected: ${a.top[k - 1]
                .slice(0, 5)
                .map((one) => `${marked(one.text)} ${percent(one.p)}`)
                .join(", ")}`
            : null
        } onClick=${() => set({ pos: k })}>
        <td class="number quiet">${k}</td><td><${Token} text=${a.tokens[k].text} special=${a.tokens[k].special} style=${bits === null ? null : { background: colourOf(bits / MOST_BITS).fill, color: colourOf(bits / MOST_BITS).ink }} /></td>
        <td class="bitbar">${
          bits === null
            ? html`<span class="quiet">${k ? "part of the prefix" : "nothing came before it"}</span>`
            : html`<div class="track"><div class="fill" style=${{ left: 0, width: `${Math.min(100, (100 * bits) / MOST_BITS)}%`, background: "var(--positive)" }}></div>
          ${orders.map((name, j) => (ngrams.bits[name][k] === null ? null : html`<i class="tickmark" title=${`${name}: ${three(ngrams.bits[name][k])} bits`} style=${{ left: `${Math.min(100, (100 * ngrams.bits[name][k]) / MOST_BITS)}%`, background: `var(--line-${j + 2})` }}></i>`))}</div>`
        }</td>
        <td class="number">${bits === null ? "" : html`<${Num} name=${`surprisal.${k}`} value=${bits} said=${bitsOf} />`}</td>
        <td class="number">${bits === null ? "" : html`<${Num} name=${`rank.${k}`} value=${a.rank[k] + 1} digits=${9} />`}</td><td class="number">${entropy === null ? "" : html`<${Num} name=${`entropy.${k}`} value=${entropy} said=${entropyOf} />`}</td>
        ${orders.map((name) => html`<td class="number">${ngrams.bits[name][k] === null ? "" : html`<${Num} name=${`${name}.${k}`} value=${ngrams.bits[name][k]} said=${bitsOf} />`}</td>`)}</tr>`;
      })}</tbody></table></div>
    ${rows.length < a.n ? html`<p class="quiet">Positions ${first} to ${first + rows.length - 1} of ${a.n}: select another token to move.</p>` : null}
  <//>`;
}

/** What was expected in the selected token's place. */
function Guess({ a, pos, model, ngrams }) {
  const from = model.masked ? pos : pos - 1;
  const title = model.masked ? "What the model expects in this place" : "What was expected in this place";
  if (from < 0)
    return html`<${Panel} title=${title}><p class="quiet">Nothing came before the first token, so nothing was expected. Select another one.</p><//>`;
  const own = a.tokens[pos].id;
  return html`<${Panel} title=${title} id="guess" code=${`${a.code}\ntop = trace.top(${from}, k=8)`} not="the tokens further down: rank and bits above count all of them.">
    <p>${model.masked ? "At" : "Before"} <${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> at position ${pos}; the framed row is the token that stands there.</p>
    <div class="guesses"><div><h3>this model</h3><${TopBars} rows=${a.top[from]} name="expected" own=${own} /></div>
      <${NgramBars} facts=${ngrams} own=${own} /></div>
  <//>`;
}

/** Shannon's texts: what follows the prompt when the last 0, 1 and 2 tokens are known, and what the model writes. */
function Written({ view, set, a }) {
  const written = useLines(
    view.written < 0 ? null : route(`api/t/${a.id}/tokens/written`, { seed: view.written }),
    null,
    foldLines,
    [a.id, view.written],
  );
  return html`<${Panel} title="Texts that they write" id="written" not="how good such texts are on average: the bits above measure that.">
    <p>As Shannon did in 1948: each continues the prompt with tokens drawn from its own probabilities, knowing more and more of the context.${a.edits.length ? " The edits above act in this model's text alone." : ""}</p>
    <button type="button" class="act small" onClick=${() => set({ written: view.written + 1 })}>${view.written < 0 ? "Write" : "Write others"}</button>
    <${Progress} of=${written} />
    ${(written.value?.lines ?? []).map((line) => html`<div class="shannon">${line.reason ? html`<span class="quiet">${line.reason}</span>` : html`<h3>${["unigram", "bigram", "trigram"].includes(line.name) ? html`<${Term} t=${line.name} />` : line.name} <${CopyButton} code=${`${a.code}\n${line.code}`} /></h3><p dir="auto">${line.text}</p>`}</div>`)}
  <//>`;
}
