// The page Read for predictors without attention: how an n-gram's counts, level by level, make a prediction.

import { html } from "./preact.js";
import { useJson } from "./api.js";
import { CopyButton, Num, Term, Token, Waiting, percent, plural } from "./parts.js";
import { Equation, Sampling, Source } from "./read.js";
import { FromText } from "./text_parts.js";

export const page = { name: "read", title: "Read", needs: "trace", Page };

function Page({ view, set, model, a, pos }) {
  const levels = useJson(`api/t/${a.id}/read/levels`, { pos });
  const first = Math.max(0, pos - model.n_ctx + 1);
  return html`<div class="read">
    <p class="lead">How the token after <${Token} text=${a.tokens[pos].text} special=${a.tokens[pos].special} /> at position ${pos} is predicted. ${
      model.kind === "recurrent"
        ? "This predictor reads one token after the other, and keeps what it has read in one vector."
        : model.n_ctx
          ? html`This predictor reads the last ${plural(model.n_ctx, "token")} and nothing before:
      ${a.tokens.slice(first, pos + 1).map((token) => html`<${Token} text=${token.text} special=${token.special} />`)}`
          : "This predictor reads no context at all."
    }<span class="screen"> Click another token above to follow it.</span></p>
    <${FromText} a=${a} pos=${pos} />
    <${Waiting} of=${levels} />
    ${(levels.value?.levels ?? []).map((level) => html`<${Level} key=${level.name} level=${level} definition=${levels.value.definitions[level.definition]} trace=${a.code} at=${`${a.id}/${pos}`} />`)}
    <${Sampling} view=${view} set=${set} a=${a} pos=${pos} model=${model} />
  </div>`;
}

/** What follows a context of one length; `trace` is code. */
function Level({ level, definition, trace, at }) {
  const code = `${trace}\n${level.code}`;
  const title =
    level.name === "mixture"
      ? "Network and n-gram mixed"
      : level.context.length
        ? `After ${plural(level.context.length, "token")}`
        : "Without context";
  return html`<section class="panel part" data-part=${level.name} data-at=${at} aria-label=${title}>
    <div class="head"><h2>${title} ${level.context.map((token) => html`<${Token} text=${token.text} special=${token.special} />`)}</h2><div class="tools"><${CopyButton} code=${code} /></div></div>
    <${Equation} math=${level.math} />
    <p class="quiet">${level.facts.map((fact, k) => html`${k ? ", " : ""}${fact.label} = <${Num} name=${fact.name} value=${fact.value} />`)}. ${level.facts.some((fact) => fact.label.startsWith("D")) ? html`D is the <${Term} t="discount" />, N(h) how many tokens have the count, V the size of the vocabulary${level.columns[0] === "times" ? "" : "; counts are of the different tokens that stood before"}.` : ""}</p>
    ${level.reason ? html`<p>${level.reason}</p>` : null}
    ${
      level.rows.length
        ? html`<div class="wide"><table class="expected levels"><thead><tr><th>next token</th><th></th>${level.columns.map((name) => html`<th>${name}</th>`)}</tr></thead>
      <tbody>${level.rows.map(
        (
          row,
        ) => html`<tr class=${row.follows ? "here" : ""}><td><${Token} text=${row.token.text} special=${row.token.special} /></td>
        <td class="bitbar"><div class="track"><div class="fill" style=${{ left: 0, width: `${100 * row.values.at(-1)}%`, background: "var(--positive)" }}></div></div></td>
        ${row.values.map((x, k) => html`<td class="number"><span data-name=${`${level.name}.${row.token.id}.${k}`} data-value=${String(x)}>${k || level.name === "mixture" ? (x === 0 ? "0" : percent(x)) : x.toLocaleString("en")}</span></td>`)}</tr>`,
      )}</tbody></table></div>`
        : null
    }
    ${level.rows.some((row) => row.follows) ? html`<p class="quiet">The marked row is the token that follows in the text.</p>` : null}
    <details><summary class="quiet">definition</summary><${Source} definition=${definition} code=${code} /></details>
  </section>`;
}
