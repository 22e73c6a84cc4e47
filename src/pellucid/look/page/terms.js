"use strict";
// What each term means, in two lines: shown where the pointer or the keyboard rests on it.

export const TERMS = {
  token: "A piece of text that the model reads as one: a word, a part of a word, or a byte. Each has a number, its id.",
  surprisal: "How unexpected a token was: -log2 of the probability that the model gave it, in bits. 0 bits: it was certain.",
  "residual stream": "The vector that each position carries through the model. Every part reads it and adds its result to it.",
};
