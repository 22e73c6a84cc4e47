// Tokens as chips, coloured by surprisal, and what was expected at the chosen one.

panels.tokens = async (panel, body) => {
  const tokens = figure.tokens, n = tokens.length;
  const [entropy, top, probability] = await Promise.all([unpack(panel.entropy), unpack(panel.top), unpack(panel.probability)]);
  const k = panel.top.shape[1], surprisal = panel.surprisal;
  const most = surprisal ? Math.max(8, ...surprisal.map((s) => s ?? 0)) : Math.max(1, ...entropy);
  const shade = (i) => (surprisal ? surprisal[i] : entropy[i]);
  const list = make("div", { class: "chips", role: "listbox", "aria-label": "tokens of the prompt" });
  const chips = tokens.map((token, i) => {
    const value = shade(i), unit = surprisal ? "bits" : "bits of entropy";
    return make("button", {
      class: "chip", role: "option", dir: "auto", tabindex: -1, title: `${i}: ${value === null ? "not predicted" : `${three(value)} ${unit}`}`,
      onclick: () => choose({ position: i }),
    }, ...spelled(token));
  });
  list.append(...chips);
  const move = (step) => {
    choose({ position: within(state.position + step, n) });
    chips[state.position].focus();
  };
  arrows(list, { left: () => move(-1), right: () => move(1), up: () => move(-1), down: () => move(1) });
  const caption = surprisal ? "surprisal, bits: " : "entropy, bits: ";
  body.append(make("p", { class: "quiet" }, caption, scaleBar("0", three(most)), make("span", { class: "screen" }, "  Choose a token; the arrow keys move. All panels follow.")), list);

  if (figure.source.length) body.append(make("h3", {}, "Source, read by the encoder"), make("div", { class: "chips" }, ...figure.source.map((token) => chip(token))));

  const left = make("div"), right = make("div");
  body.append(make("div", { class: "two", "aria-live": "polite" }, left, right));
  let painted = null, last = -1;
  follow(() => {
    if (painted !== ramps) {
      chips.forEach((c, i) => {
        const { fill, ink } = colourOf((shade(i) ?? 0) / most);
        c.style.background = fill;
        c.style.color = ink;
      });
      painted = ramps;
    }
    if (last === state.position) return;
    if (last >= 0) {
      chips[last].setAttribute("aria-selected", "false");
      chips[last].tabIndex = -1;
    }
    last = state.position;
    chips[last].setAttribute("aria-selected", "true");
    chips[last].tabIndex = 0;
    const at = chips[last].offsetTop - list.offsetTop;
    if (at < list.scrollTop || at + 28 > list.scrollTop + list.clientHeight) list.scrollTop = at - list.clientHeight / 2;
    const expected = (i, wanted) =>
      bars(Array.from({ length: k }, (_, r) => {
        const text = figure.words[top[i * k + r]], p = probability[i * k + r];
        return { name: chip(text), value: p, text: percent(p), wanted: text === wanted };
      }), 1);
    const before = make("h3", {}, "Expected in its place");
    if (panel.masked) left.replaceChildren(before, expected(last, tokens[last]));
    else if (last === 0) left.replaceChildren(before, make("p", { class: "quiet" }, "Nothing was read before the first token, so nothing was expected."));
    else if (surprisal[last] === null) left.replaceChildren(before, make("p", { class: "quiet" }, "This token is part of the prefix, which every position reads, so it was not predicted."));
    else {
      const facts = `It came as a surprise of ${three(surprisal[last])} bits, number ${panel.rank[last] + 1} of the guesses.`;
      left.replaceChildren(before, expected(last - 1, tokens[last]), make("p", { class: "quiet" }, facts));
    }
    if (!panel.masked) right.replaceChildren(make("h3", {}, "Expected next"), expected(last, tokens[last + 1]), make("p", { class: "quiet" }, `Entropy ${three(entropy[last])} bits.`));
  });
};
