// The page: heading, what is chosen, and the panels one below the other.

async function start() {
  readRamps();
  const page = document.getElementById("page");
  page.replaceChildren(make("div", { class: "top" }, make("h1", {}, figure.title), themeButton()));
  page.append(make("div", { class: "facts" }, ...figure.facts.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)))));
  if (figure.tokens.length && figure.panels.length > 1) page.append(chosen());
  for (const panel of figure.panels) {
    const head = make("div", { class: "head" }, make("h2", {}, panel.title)), section = make("section", { "aria-label": panel.title }, head);
    page.append(section);
    await panels[panel.kind](panel, section, head);
  }
  addEventListener("resize", redraw);
  document.documentElement.dataset.ready = "yes";
}

/** The line that stays in sight: which token, with a step to either side. */
function chosen() {
  const text = make("span", { "aria-live": "polite" }), n = figure.tokens.length;
  const step = (by) => () => choose({ position: within(state.position + by, n) });
  const line = make("div", { class: "now" }, make("button", { onclick: step(-1), "aria-label": "token before" }, "\u2190"), make("button", { onclick: step(1), "aria-label": "token after" }, "\u2192"), text);
  follow(() => text.replaceChildren(`position ${state.position} of ${n}: `, chip(figure.tokens[state.position])));
  return line;
}

start();
