"use strict";
// What each term means, in two lines: shown where the pointer or the keyboard rests on it.

export const TERMS = {
  "activation patching": "A run of one prompt in which one value is replaced by what another prompt has there. It shows where their difference is.",
  "attribution patching": "An estimate of activation patching for all places at once, from one backward pass. It is exact only for small differences.",
  "copying head": "A head that raises the logits of the tokens that it attends to: it says again what it has read.",
  "duplicate token head": "A head that attends to earlier occurrences of the present token.",
  "first token head": "A head that attends to the first token, often because it has nothing to do there.",
  "induction head": "A head that attends to what followed the last occurrence of the present token, and so continues repetitions.",
  "previous token head": "A head that attends to the token before. Induction heads build on what it writes.",
  token: "A piece of text that the model reads as one: a word, a part of a word, or a byte. Each has a number, its id.",
  surprisal: "How unexpected a token was: -log2 of the probability that the model gave it, in bits. 0 bits: it was certain.",
  "residual stream": "The vector that each position carries through the model. Every part reads it and adds its result to it.",
};
