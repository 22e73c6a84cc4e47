// Fourteen cards that lead through the page Read, on the prompt that is there.

import { html, useEffect, useRef } from "./preact.js";

/** Each card: a title, two or three sentences, and the end of the name of the step that it points to; the first that exists. */
export const CARDS = [
  [
    "Text becomes numbers",
    "The text was cut into tokens: pieces that the model knows. Each has a number. The coloured boxes above are the tokens; click one to follow it.",
    [],
  ],
  [
    "Each token becomes a vector",
    "The token's number picks one row of a table, W_E. This row, a list of numbers, is all that the model knows of the token so far.",
    ["embed"],
  ],
  [
    "Where it stands",
    "A transformer has no left and right by itself. Its positions are added here as a vector, or they turn the queries and keys later, or they change the scores.",
    ["pos_embed", "attn.rot_q", "attn.scores"],
  ],
  [
    "The residual stream",
    "From here on each position carries one vector. Every part of the model reads it and adds its own result to it. Nothing is overwritten.",
    ["resid_pre"],
  ],
  [
    "To one size",
    "Before a part reads the stream, its vector is divided by its size, so that no part has to cope with large and small ones.",
    ["norm_1", "norm_1_out"],
  ],
  [
    "A question",
    "Each head makes a query of this position: what it looks for. In other positions the same weights make other queries.",
    ["attn.q"],
  ],
  [
    "Answers to it",
    "Each position also offers a key. Where a key points the same way as the query, this position is what the head looks for.",
    ["attn.k"],
  ],
  [
    "The score",
    "Query times key, number by number, summed: a high score is a good match. Open \u201cOne score, term by term\u201d and move the slider to add it up yourself.",
    ["attn.scores"],
  ],
  [
    "Shares of attention",
    "The scores become shares that add up to 1. A position that may not be read, such as a later one, has the share 0.",
    ["attn.pattern"],
  ],
  [
    "What is passed on",
    "The values of the positions are mixed in these shares. So a head copies information from where it looks to here.",
    ["attn.z"],
  ],
  [
    "Added to the stream",
    "What all heads found is added to the stream. This sum is why parts can be studied one by one.",
    ["resid_mid", "resid_post"],
  ],
  [
    "Neurons",
    "The MLP looks at this position alone. Each neuron fires on its own pattern in the stream, and then writes its own vector.",
    ["mlp.post", "mlp.post.0"],
  ],
  [
    "And so on, block by block",
    "Each block does the same with its own weights. After the last one the stream holds the model's guess about what comes next.",
    ["final_norm", "resid_post"],
  ],
  [
    "The next token",
    "Each token of the vocabulary gets a score, and softmax makes probabilities of them. Below, the sliders show how one token is chosen.",
    ["probs", "logits"],
  ],
];

const find = (steps, ends) => {
  for (const end of ends) {
    const step = steps.find((one) => one.name === end || one.name.endsWith(`.${end}`));
    if (step) return step.name;
  }
  return null;
};

export function Tour({ view, set, steps, goTo }) {
  const at = Math.min(CARDS.length, view.tour) - 1,
    [title, text, ends] = CARDS[at];
  const last = at === 12 ? [...steps].reverse() : steps,
    card = useRef();
  // the keyboard is on the card: when it opens, and when the button that was pressed is gone
  useEffect(() => {
    if (!card.current.contains(document.activeElement)) card.current.focus({ preventScroll: true });
  }, [at]);
  useEffect(() => {
    if (!steps.length) return;
    const name = find(last, ends);
    if (name) goTo(name);
    else scrollTo({ top: 0, behavior: "smooth" });
  }, [at, steps.length]);
  const move = (to) => set({ tour: to });
  return html`<aside ref=${card} class="tour" role="dialog" aria-label="Tour" tabindex="-1" onKeyDown=${(event) => event.key === "Escape" && move(0)}>
    <p class="quiet">${at + 1} of ${CARDS.length}</p><h2>${title}</h2><p>${text}</p>
    <div class="row"><button type="button" class="act small" disabled=${at === 0} onClick=${() => move(at)}>Back</button>
      ${at + 1 < CARDS.length ? html`<button type="button" class="act small main" onClick=${() => move(at + 2)}>Next</button>` : null}
      <button type="button" class="act small" onClick=${() => move(0)}>${at + 1 < CARDS.length ? "End the tour" : "Done"}</button></div>
  </aside>`;
}
