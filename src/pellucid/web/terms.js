// What each term means, in two lines: shown where the pointer or the keyboard rests on it. In the order of the alphabet.

export const TERMS = {
  "activation patching":
    "A run of one prompt in which one value is replaced by what another prompt has there. It shows where their difference is.",
  "attended token's rank head":
    "How high a head ranks the token that it attends to among all tokens in what it writes, on this text: 1 always first, 0 anywhere, -1 always last.",
  "attention pattern": "Row i holds the shares of attention that query i gives to each key. Rows sum to 1.",
  attention:
    "Each position looks at others and takes in what they pass on. Several heads do this side by side, each in its own way.",
  "attribution patching":
    "An estimate of activation patching for all places at once, from one backward pass. It is exact only for small differences.",
  bigram: "A prediction from the last token alone: how often each token followed it in the training text.",
  bits: "A number of yes-or-no questions. A token that costs 3 bits had the probability 1/8.",
  bytes:
    "The numbers from 0 to 255 that text is stored as. One letter of English is one byte; other characters take up to four.",
  cache:
    "Earlier positions never change, so a program that writes text keeps their keys and values and computes one new column at each step.",
  composition: "A later head reads what an earlier head writes: through its queries, its keys or its values.",
  copying:
    "Whether the weights of a head raise the logits of the very tokens that it attends to, whatever the text: the sum of the eigenvalues of W_U W_OV W_E over the sum of their sizes. From -1, it lowers them, to 1, it raises them.",
  "cross-attention":
    "Attention from the text that is written to the source that was read: queries from the one, keys and values from the other.",
  "direct logit attribution":
    "A logit as an exact sum: the part that each embedding, head, MLP and bias wrote in the direction that the readout reads.",
  "duplicate token head": "A head that attends to earlier occurrences of the present token.",
  discount:
    "What is taken from every count and passed on to the shorter context, so that tokens that never followed here keep a chance.",
  "earlier copies": "The share of a head's attention that goes to earlier occurrences of the same token.",
  embedding: "The first step: each token's id picks a row of a table, and this vector enters the model.",
  entropy:
    "How undecided the model, or a head's attention, is, in bits. 0: sure of one token. 10 bits: as undecided as among 1,024 equal ones.",
  "first token head": "A head that attends to the first token, often because it has nothing to do there.",
  "first token":
    "The share of a head's attention that goes to the first token, where many heads rest when they find nothing.",
  head: "One attention of a layer. It has its own queries, keys and values, and adds its own result to the stream.",
  "induction head":
    "A head that attends to what followed the last occurrence of the present token, and so continues repetitions.",
  "in-context learning score":
    "The loss after many tokens of context less the loss after few: negative where the model learns from what it reads.",
  induction:
    "The share of a head's attention that goes to what followed earlier copies of the token: it lets the model repeat what it has seen.",
  "logit lens": "The readout applied in the middle of the network: what it would predict if it ended there.",
  logits: "One score for each token of the vocabulary, before softmax makes probabilities of them.",
  mask: "The rule of which positions a position may read. In a GPT it may read itself and earlier ones, not later ones.",
  merge:
    "A tokenizer learns which neighbours are frequent, and joins them. A token is the result of several such joins.",
  "min-p": "Only tokens that are at least this share as likely as the likeliest one can be drawn.",
  MLP: "Neurons that look at one position alone. Each fires on a pattern in the stream, and then adds its own vector to it.",
  "n-gram": "A prediction from the last few tokens alone: what followed them in the training text, counted.",
  norm: "Divides a vector by its size, and scales each coordinate by a learned factor, so that the next part reads numbers of one size.",
  "OV circuit": "W_O W_V: what a head adds to the stream for what it reads, whatever made it look there.",
  positions:
    "What tells the model where a token stands: a vector that is added, a rotation of queries and keys, or a number added to the scores.",
  "previous token head": "A head that attends to the token before. Induction heads build on what it writes.",
  "previous token": "The share of a head's attention that goes to the token just before.",
  "QK circuit": "W_Q and W_K together: which keys a query scores highest, so where a head looks.",
  rank: "The place of the token among the model's guesses. 1: the token was its first guess.",
  "residual stream":
    "The vector that each position carries through the model. Every part reads it and adds its result to it.",
  score: "The product of a query and a key, scaled. The softmax of a row of scores is a row of the attention pattern.",
  "singular values":
    "The strengths of a matrix along its own directions, largest first. A few large ones: it does few things.",
  strip:
    "One small field for each number of the vector. The darker or stronger the colour, the larger the number; point at it to read it.",
  surprisal:
    "How unexpected a token was: -log2 of the probability that the model gave it, in bits. 0 bits: the model was certain.",
  temperature:
    "Divides the scores. Below 1 the likely tokens become likelier; above 1 all become more equal; 0 always takes the likeliest.",
  token: "A piece of text that the model reads as one: a word, a part of a word, or a byte. Each has a number, its id.",
  "top-k": "Only this many of the likeliest tokens can be drawn.",
  "top-p": "Only the fewest likeliest tokens that together have this probability can be drawn.",
  trigram: "A prediction from the last two tokens alone: what followed this pair in the training text.",
  unembedding: "The last step: the stream is compared with one vector for each token, which gives each token a score.",
  unigram: "A prediction without any context: how often each token occurs in the training text.",
};
