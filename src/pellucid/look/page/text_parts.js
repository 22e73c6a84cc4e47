// What Read and Tokens share: how a word was put together from bytes, and n-grams of the training text beside the model.

import { html } from "./preact.js";
import { route, useJson, useLines } from "./api.js";
import { TopBars } from "./charts.js";
import { Failed, Panel, Term, Token, Waiting } from "./parts.js";

export const hexPairs = (hex) => hex.match(/../g) ?? [];
const strict = new TextDecoder("utf-8", { fatal: true });
/** Bytes as the text that they spell, or as escapes where they spell none. */
export const readable = (hex) => {
  try {
    return strict.decode(Uint8Array.from(hexPairs(hex), (pair) => parseInt(pair, 16)));
  } catch {
    return hexPairs(hex)
      .map((pair) => `\\x${pair}`)
      .join("");
  }
};

/** The bytes and the merges of a trace's tokens; its `value` is null while those of another trace are there. */
export function usePieces(a) {
  const pieces = useJson(`api/t/${a.id}/tokens/pieces`);
  return { ...pieces, value: pieces.value?.bytes.length === a.n ? pieces.value : null };
}

/** The word that the selected token is in: words and tokens run along the same bytes. */
function wordAt(value, pos) {
  if (!value.bytes[pos]) return null;
  const at = value.bytes.slice(0, pos).join("").length;
  let end = 0;
  return value.words.find((word) => at < (end += word.bytes.length)) ?? null;
}

/** How the word of the selected token was put together, or why that cannot be said. */
export function Merges({ value, pos }) {
  const word = wordAt(value, pos);
  if (value.reason) return html`<p class="quiet">No merges: ${value.reason}.</p>`;
  return (
    word &&
    html`<h3>How this word was put together, <${Term} t="merge" /> by merge</h3>
    ${word.trees ? html`<div class="trees">${word.trees.map((tree) => html`<${Tree} tree=${tree} />`)}</div><p class="quiet">At the bottom the bytes; each box above joins the two below it. The number says how early the tokenizer learned this merge: 1 was the most frequent pair.</p>` : html`<p class="quiet">This word is too long to draw.</p>`}`
  );
}

const Tree = ({
  tree,
}) => html`<div class="tree"><span class=${tree.parts.length ? "node" : "node leaf"} title=${tree.bytes}><${Token} text=${readable(tree.bytes)} />${tree.rank === null ? "" : html`<small>${tree.rank + 1}</small>`}</span>
  ${tree.parts.length ? html`<div class="branches">${tree.parts.map((part) => html`<${Tree} tree=${part} />`)}</div>` : null}</div>`;

/** The head of the column Read: from the text over bytes and merges to the id of the selected token. */
export function FromText({ a, pos }) {
  const pieces = usePieces(a),
    { value } = pieces,
    bytes = value && hexPairs(value.bytes[pos]);
  return html`<${Panel} title="From text to a token" id="text" code=${`${a.code}\nid = int(trace.ids[0, ${pos}])\nid, model.tokenizer.token_bytes(id)`} not="where this piece occurs in the training text, which is why the tokenizer learned it.">
    <${Waiting} of=${pieces} />
    ${
      value
        ? html`<p>${bytes.length ? html`<${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> is stored as ${bytes.length} <${Term} t="bytes">${bytes.length > 1 ? "bytes" : "byte"}<//>, <code data-name="text.bytes">${bytes.join(" ")}</code>, and is` : html`<${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> stands for no text. It is`} one <${Term} t="token" /> with the id <b data-name="text.id" data-value=${a.tokens[pos].id}>${a.tokens[pos].id}</b>.</p>
      <${Merges} value=${value} pos=${pos} />`
        : null
    }
  <//>`;
}

// N-grams ------------------------------------------------------------------------------------

/** What is being done, and the lines that are there. */
export const foldLines = (value, line) =>
  line.doing ? { lines: value?.lines ?? [], doing: line } : { lines: [...(value?.lines ?? []), line], doing: null };

export const Progress = ({ of }) =>
  of.error
    ? html`<${Failed} of=${of} />`
    : of.loading && of.value?.doing
      ? html`<p class="quiet" role="status" data-waiting>${of.value.doing.doing} (${of.value.doing.done + 1} of ${of.value.doing.of})</p>`
      : of.loading
        ? html`<p class="quiet" role="status" data-waiting>asking \u2026</p>`
        : null;

/** What the n-grams say of the text, and of the token after position `pos`: {progress, facts}; asked for when shown. */
export function useNgrams(view, a, pos) {
  const progress = useLines(view.ngrams ? route(`api/t/${a.id}/tokens/ngrams`, { pos }) : null, null, foldLines, [
    view.ngrams,
    a.id,
    pos,
  ]);
  return { progress, facts: progress.value?.lines.at(-1) ?? null };
}

export const NgramToggle = ({ view, set }) =>
  html`<label class="toggle"><input type="checkbox" checked=${view.ngrams} onChange=${(event) => set({ ngrams: event.target.checked })} /> beside <${Term} t="n-gram">n-grams<//> counted on the training text</label>`;

/** What each n-gram expects, a column for each. */
export const NgramBars = ({ facts, own }) =>
  facts?.top
    ? Object.entries(facts.top).map(
        ([name, rows]) =>
          html`<div><h3><${Term} t=${name} /></h3><${TopBars} rows=${rows} name=${name} own=${own} /></div>`,
      )
    : null;
