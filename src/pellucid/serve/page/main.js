// The page: what is asked, what comes back, and the way back.

import { make, readRamps, redraw, scaleBar, themeButton, three } from "./common.js";
import { ServerError, ask, events, key } from "./api.js";
import { asCurl, asPython } from "./copy.js";
import { Alternatives, MOST_BITS, WrittenText, fromEntries, fromLists } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const base = new URL(".", location.href).href;
const popover = new Alternatives($("alternatives"));
let models = []; // as the server lists them
let about = {}; // tokenizer_info of the chosen one
let running = null; // the AbortController of the answer that is coming
let earlier = []; // {prompt, results} before each branch
let conversation = []; // messages: {role, content}
let shownBody = null; // the last request, with the seed that it was drawn with

const mode = () => document.querySelector("input[name=mode]:checked").value;
const model = () => models.find(({ id }) => id === $("model").value);

function say(text) {
  $("status").textContent = text;
  $("error").textContent = "";
}

function fail(error) {
  if (error.status === 401) return askForKey("The key is wrong, or the server has another one now.");
  $("status").textContent = "";
  $("error").textContent = error instanceof ServerError ? sentence(error.message) : `The server cannot be reached: ${error.message}`;
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

// The key and the models ---------------------------------------------------------------------

function askForKey(why = "") {
  const had = key.get() !== null;
  key.forget();
  $("forget").hidden = true;
  $("ask").hidden = true;
  $("key-form").hidden = false;
  $("key-title").textContent = had && why ? why : "This server asks for a key";
  $("key").focus();
}

async function open() {
  try {
    models = (await (await ask("v1/models")).json()).data;
  } catch (error) {
    if (error.status === 401) return askForKey("That key is not the server's.");
    $("ask").hidden = false;
    if (error.status === 503) {
      say("The server is loading its models.");
      setTimeout(open, 1000);
    } else fail(error);
    return;
  }
  $("key-form").hidden = true;
  $("ask").hidden = false;
  $("forget").hidden = key.get() === null;
  // a server writes as many tokens as its context holds, unless it is told otherwise
  $("max-tokens").value = Math.min(64, models[0].meta?.n_ctx_train ?? 64);
  $("model").replaceChildren(...models.map(({ id }) => make("option", { value: id }, id)));
  say("");
  await choose();
}

async function choose() {
  const { id, meta = {} } = model();
  const facts = [["parameters", meta.n_params], ["context", meta.n_ctx_train], ["vocabulary", meta.n_vocab], ["width", meta.n_embd]];
  $("facts").replaceChildren(...facts.filter(([, n]) => n).map(([name, n]) => make("span", {}, `${name} `, make("b", {}, n.toLocaleString("en")))));
  try {
    about = await (await ask(`tokenizer_info?model=${encodeURIComponent(id)}`)).json();
  } catch (error) {
    about = {};
    fail(error);
  }
  $("modes").hidden = !about.chat_template;
  if (!about.chat_template) document.querySelector("input[name=mode][value=text]").checked = true;
  dress();
  document.documentElement.dataset.ready = "yes";
}

function dress() {
  document.documentElement.dataset.mode = mode();
  $("send").textContent = mode() === "chat" ? "Send" : "Write";
}

// What is asked ------------------------------------------------------------------------------

/** Options that both kinds of request have; an empty seed is drawn here, so that the answer can be had again. */
function options() {
  const number = (id) => Number($(id).value);
  const seed = $("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : number("seed");
  const stop = $("stop").value.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
  return { temperature: number("temperature"), top_p: number("top-p"), n: number("samples"), seed, ...(stop.length ? { stop } : {}) };
}

function textBody(prompt) {
  const echo = $("echo").checked ? { echo: true } : {};
  return { model: model().id, prompt, max_tokens: Number($("max-tokens").value), ...options(), logprobs: 8, ...echo };
}

/** `begun` is the beginning of the answer, where one is given. */
function chatBody(messages, begun = null) {
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  const all = [...system, ...messages, ...(begun === null ? [] : [{ role: "assistant", content: begun }])];
  const goOn = begun === null ? {} : { add_generation_prompt: false, continue_final_message: true };
  return { model: model().id, messages: all, max_completion_tokens: Number($("max-tokens").value), ...options(), logprobs: true, top_logprobs: 8, ...goOn };
}

// What comes back ----------------------------------------------------------------------------

/** Run a request and hand each choice of each event to `hear`; true if it came to its end. */
async function stream(path, body, hear) {
  running?.abort();
  const mine = (running = new AbortController());
  shownBody = body;
  $("halt").hidden = false;
  $("legend").hidden = false;
  reveal();
  say(`Writing, seed ${body.seed}.`);
  let usage = null, ended = false;
  try {
    for await (const event of events(await ask(path, { ...body, stream: true, stream_options: { include_usage: true } }, mine.signal))) {
      usage = event.usage ?? usage;
      event.choices.forEach(hear);
    }
    ended = true;
    say(`${usage.completion_tokens} tokens written, ${usage.prompt_tokens} read, seed ${body.seed}.`);
  } catch (error) {
    if (error.name === "AbortError") {
      if (running === mine) say(`Stopped, seed ${body.seed}.`);
    } else fail(error);
  }
  if (running === mine) {
    running = null;
    $("halt").hidden = true;
  }
  return ended;
}

const REASONS = { length: "as long as asked", stop: "ended" };

/** The boxes of n answers side by side; each has a text, and a button for what can be done with it. */
function answers(n, make_text, action, act) {
  const list = Array.from({ length: n }, (_, i) => {
    const text = make_text(i), facts = make("span", { class: "quiet" });
    const button = make("button", { class: "act", type: "button", hidden: true, onclick: () => act(text) }, action);
    const title = make("h2", {}, n > 1 ? `${i + 1} of ${n}` : "Written");
    const box = make("section", { "aria-label": n > 1 ? `Answer ${i + 1} of ${n}` : "Answer" }, make("div", { class: "head" }, title, facts), text.element, make("div", { class: "row" }, button));
    return { text, facts, button, box };
  });
  const finish = ({ text, facts, button }, reason) => {
    text.finish();
    const each = text.scored ? `, ${three(text.bits / text.scored)} bits each` : "";
    facts.textContent = `${text.scored} tokens${each}${reason ? `, ${REASONS[reason] ?? reason}` : ""}`;
    button.hidden = !text.text;
  };
  return { list, finish, element: make("div", { class: "samples" }, ...list.map(({ box }) => box)) };
}

/** Bring answers into sight where the form fills the window. */
function reveal() {
  if ($("results").getBoundingClientRect().top > innerHeight - 120) $("legend").scrollIntoView();
}

/** Write on from a text. */
async function write(prompt) {
  $("prompt").value = prompt;
  const body = textBody(prompt), end = about.eos_token;
  const given = new WrittenText({ branch, label: "The given text", popover });
  const givenBox = make("section", { class: "given", "aria-label": "The given text", hidden: true }, make("div", { class: "head" }, make("h2", {}, "Given")), given.element);
  const { list, finish, element } = answers(body.n, (i) => new WrittenText({ before: prompt, branch, label: `Continuation ${i + 1}`, popover }), "Write on from here", (text) => branch(prompt + text.text));
  const results = make("div", {}, givenBox, element), reasons = [];
  $("results").replaceChildren(results);
  const echoed = new Set();
  await stream("v1/completions", body, ({ index, text, logprobs, finish_reason: reason }) => {
    if (body.echo && !echoed.has(index)) {
      echoed.add(index);
      if (index > 0) return;
      given.push(text, fromLists(logprobs, end).filter((token) => !token.end));
      given.finish();
      givenBox.hidden = !given.pieces.length;
      return;
    }
    list[index].text.push(text, logprobs ? fromLists(logprobs, end) : []);
    if (reason) finish(list[index], (reasons[index] = reason));
  });
  list.forEach((one, i) => reasons[i] ?? finish(one, null));
}

/** Write on from another text, with a way back to this one. */
function branch(prompt) {
  if (!$("ask").reportValidity()) return;
  earlier.push({ prompt: shownBody.prompt, results: $("results").firstChild, body: shownBody });
  $("back").hidden = false;
  $("back").focus({ preventScroll: true }); // what was pressed is gone
  write(prompt);
}

function back() {
  running?.abort();
  popover.close();
  const { prompt, results, body } = earlier.pop();
  $("prompt").value = prompt;
  $("results").replaceChildren(results);
  shownBody = body;
  $("back").hidden = !earlier.length;
  say(`Back, seed ${body.seed}.`);
  redraw();
}

// Conversations ------------------------------------------------------------------------------

/** Ask for the next turn of the conversation; `begun` is what the answer begins with. */
async function converse(begun = null) {
  const messages = [...conversation], body = chatBody(messages, begun), end = about.eos_token;
  const again = (text) => converse(text);
  let latest = null;
  const asked = messages.map(({ role, content }) => make("section", { class: "turn asked", "aria-label": role, dir: "auto" }, make("h3", {}, role), content));
  const { list, finish, element } = answers(body.n, (i) => new WrittenText({ before: begun ?? "", branch: again, label: `Answer ${i + 1}`, popover }), "Go on from this answer", (text) => {
    conversation = [...messages, { role: "assistant", content: (begun ?? "") + text.text }];
    latest?.removeAttribute("aria-pressed");
    latest = list.find((one) => one.text === text).button;
    latest.setAttribute("aria-pressed", "true");
    $("message").focus();
  });
  if (begun) for (const { text } of list) text.element.before(make("p", { class: "quiet", dir: "auto" }, begun));
  $("results").replaceChildren(make("div", {}, ...asked, element));
  const reasons = [];
  await stream("v1/chat/completions", body, ({ index, delta, logprobs, finish_reason: reason }) => {
    list[index].text.push(delta?.content ?? "", logprobs?.content ? fromEntries(logprobs.content, end) : []);
    if (reason) finish(list[index], (reasons[index] = reason));
  });
  list.forEach((one, i) => reasons[i] ?? finish(one, null));
  if (list[0].text.text || begun) conversation = [...messages, { role: "assistant", content: (begun ?? "") + list[0].text.text }];
}

function afresh() {
  running?.abort();
  conversation = [];
  $("results").replaceChildren();
  say("");
  $("message").focus();
}

// Copying ------------------------------------------------------------------------------------

async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied as ${name}.`);
  } catch { // no clipboard outside of this machine and of https
    $("copy-title").textContent = `Copy this as ${name}`;
    $("copy-text").value = text;
    $("copy").showModal();
    $("copy-text").select();
  }
}

/** The last request, where it still is what the form asks for; its seed is known then. */
function request() {
  const chat = mode() === "chat";
  const draft = $("message").value;
  const fresh = chat ? chatBody(draft ? [...conversation, { role: "user", content: draft }] : conversation) : textBody($("prompt").value);
  const same = shownBody && $("seed").value === "" && JSON.stringify({ ...shownBody, seed: 0 }) === JSON.stringify({ ...fresh, seed: 0 });
  return { chat, body: same ? shownBody : fresh, keyed: key.get() !== null };
}

// The form -----------------------------------------------------------------------------------

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  popover.close();
  if (mode() === "text") {
    earlier = [];
    $("back").hidden = true;
    write($("prompt").value);
  } else if ($("message").value) {
    conversation.push({ role: "user", content: $("message").value });
    $("message").value = "";
    converse();
  }
});
for (const id of ["prompt", "message"]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      $("ask").requestSubmit();
    }
  });
}
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.keep($("key").value.trim());
  $("key").value = "";
  open();
});
$("forget").addEventListener("click", () => {
  running?.abort();
  key.forget();
  askForKey();
});
$("halt").addEventListener("click", () => running?.abort());
$("back").addEventListener("click", back);
$("afresh").addEventListener("click", afresh);
$("model").addEventListener("change", choose);
for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", dress);
$("curl").addEventListener("click", () => {
  if (!$("ask").reportValidity()) return;
  const { chat, body, keyed } = request();
  copy(asCurl(base, chat ? "v1/chat/completions" : "v1/completions", body, keyed), "curl");
});
$("python").addEventListener("click", () => {
  if (!$("ask").reportValidity()) return;
  const { chat, body, keyed } = request();
  copy(asPython(base, chat, body, keyed, ["add_generation_prompt", "continue_final_message"]), "Python");
});

readRamps();
$("tools").append(themeButton());
$("legend").append("Surprisal of each token: ", scaleBar("0", `${MOST_BITS} bits or more`), "Hover over a token, or choose it, for what else the model expected, before temperature and top-p; press an alternative to write on from there.");
open();
