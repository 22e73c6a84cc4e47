// The page: what is asked, what comes back, and the way back.

import { make, plural, readRamps, redraw, themeButton, three } from "./common.js";
import { scaleBar } from "./elements.js";
import { ServerError, ask, events } from "./api.js";
import { asCurl, asPython } from "./copy.js";
import { asJson, asMarkdown, conversations, key, lasting, remove, store, titleOf } from "./storage.js";
import { Alternatives, MOST_BITS, WrittenText, fromEntries, fromLists } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const base = new URL(".", location.href).href;
const popover = new Alternatives($("alternatives"));
let models = []; // as the server lists them
let about = {}; // tokenizer_info of the chosen one
let running = null; // the AbortController of the answer that is coming
let earlier = []; // what was shown before each branch, and how to take it up again
let conversation = []; // messages that have an answer: {role, content}
let conversationId = null; // under which it is stored, once it is
let shownBody = null; // the last request, with the seed that it was drawn with

const mode = () => document.querySelector("input[name=mode]:checked").value;
const special = () => new Set(about.additional_special_tokens ?? [about.eos_token]);
const model = () => models.find(({ id }) => id === $("model").value);
/** Whether an encoder reads the given text, so that the written one stands by itself. */
const readsSource = () => Boolean(model().meta?.reads_source);

function say(text) {
  $("status").textContent = text;
  $("error").textContent = "";
}

function fail(error) {
  if (error.status === 401) return askForKey("The key is wrong, or the server has another one now.");
  $("status").textContent = "";
  $("error").textContent = error instanceof ServerError ? sentence(error) : `The server cannot be reached: ${error.message}`;
}

/** The server's sentence with a capital letter and a full stop; a field's name stays as it is written. */
function sentence({ message, field }) {
  const isField = (field && message.startsWith(field)) || !/^[a-z]+[ ,]/.test(message);
  return (isField ? message : message[0].toUpperCase() + message.slice(1)) + (/[.?!]$/.test(message) ? "" : ".");
}

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
  const used = key.get();
  try {
    models = (await (await ask("v1/models")).json()).data;
  } catch (error) {
    if (key.get() !== used) return; // another key has been given meanwhile, and is being tried
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
  $("asked").textContent = readsSource() ? "Text for the model to read" : "Text to write on from";
  $("echo").parentElement.hidden = readsSource();
  const chat = mode() === "chat";
  $("send").textContent = chat ? "Send" : "Write";
  $("composer")[chat ? "before" : "after"]($("legend"), $("results"));
}

// What is asked ------------------------------------------------------------------------------

/** Options that both kinds of request have; an empty seed is drawn here, so that the answer can be had again. */
function options() {
  const number = (id) => Number($(id).value);
  const seed = $("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : number("seed");
  const stop = $("stop").value.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
  return { temperature: number("temperature"), top_p: number("top-p"), n: number("samples"), seed, ...(stop.length ? { stop } : {}) };
}

/** `begun` is what the written text begins with, where an encoder reads the given one. */
function textBody(given, begun = "") {
  const echo = $("echo").checked && !readsSource() ? { echo: true } : {}, read = begun ? { source: given, prompt: begun } : { prompt: given };
  return { model: model().id, ...read, max_tokens: Number($("max-tokens").value), ...options(), logprobs: 8, ...echo };
}

/** `begun` is the beginning of the answer, where one is given. */
function chatBody(messages, begun = null) {
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  const all = [...system, ...messages, ...(begun === null ? [] : [{ role: "assistant", content: begun }])];
  const goOn = begun === null ? {} : { add_generation_prompt: false, continue_final_message: true };
  return { model: model().id, messages: all, max_completion_tokens: Number($("max-tokens").value), ...options(), logprobs: true, top_logprobs: 8, truncation: "auto", ...goOn };
}

// What comes back ----------------------------------------------------------------------------

/** Run a request and hand each choice of each event to `hear`; true if it came to its end. */
async function stream(path, body, hear) {
  running?.abort();
  const mine = (running = new AbortController());
  shownBody = body;
  $("halt").hidden = false;
  say(`Writing, seed ${body.seed}.`);
  let usage = null, ended = false, turn = performance.now();
  try {
    const response = await ask(path, { ...body, stream: true, stream_options: { include_usage: true } }, mine.signal);
    const leftOut = response.headers.get("Pellucid-Messages-Left-Out");
    for await (const event of events(response)) {
      usage = event.usage ?? usage;
      event.choices.forEach(hear);
      // tokens may come faster than they are drawn; the button that stops them must be heard between them
      if (performance.now() - turn > 12) {
        await new Promise((done) => setTimeout(done, 16));
        turn = performance.now();
      }
      if (mine.signal.aborted) throw new DOMException("stopped", "AbortError");
    }
    ended = true;
    const note = leftOut ? ` The context is full: messages left out at the beginning: ${leftOut}.` : "";
    say(`${plural(usage.completion_tokens, "token")} written, ${usage.prompt_tokens} read, seed ${body.seed}.${note}`);
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
function answers(n, makeText, action, act) {
  const list = Array.from({ length: n }, (_, i) => {
    const text = makeText(i), facts = make("span", { class: "quiet" });
    const button = make("button", { class: "act", type: "button", hidden: true, onclick: () => act(text) }, action);
    const title = make("h2", {}, n > 1 ? `${i + 1} of ${n}` : mode() === "chat" ? "assistant" : "Written");
    const box = make("section", { "aria-label": n > 1 ? `Answer ${i + 1} of ${n}` : "Answer" }, make("div", { class: "head" }, title, facts), text.element, make("div", { class: "row" }, button));
    return { text, facts, button, box };
  });
  const finish = ({ text, facts, button }, reason) => {
    text.finish();
    const each = text.scored ? `, ${three(text.bits / text.scored)} bits each` : "";
    facts.textContent = `${plural(text.scored, "token")}${each}${reason ? `, ${REASONS[reason] ?? reason}` : ""}`;
    button.hidden = !text.text;
  };
  const element = make("div", { class: "samples" }, ...list.map(({ box }) => box)), before = $("results").firstChild, shown = shownBody;
  /** No box stays empty after a failure: where none was filled, what was shown before is shown again. */
  const close = (ended, given = false) => {
    const empty = list.filter((one, i) => !ended.has(i) && !one.text.pieces.length);
    for (const { box } of empty) box.remove();
    if (empty.length < n || given || !element.isConnected) return;
    $("results").replaceChildren(...(before ? [before] : []));
    $("legend").hidden = !before;
    shownBody = shown;
    redraw();
  };
  return { list, finish, close, element };
}

/** Bring answers into sight where they are written below the window. */
function reveal(answers, top) {
  const covered = mode() === "chat" ? $("composer").offsetHeight : 0;
  if (answers.getBoundingClientRect().top > innerHeight - covered - 120) top.scrollIntoView();
}

/** Write on from a text; where an encoder reads it, what is written begins with `begun`. */
async function write(prompt, begun = "") {
  $("prompt").value = prompt;
  const body = textBody(prompt, begun), names = special(), before = readsSource() ? begun : prompt, go = (text) => branch(prompt, text);
  const given = new WrittenText({ branch: go, label: "The given text", popover });
  const givenBox = make("section", { class: "given", "aria-label": "The given text", hidden: true }, make("div", { class: "head" }, make("h2", {}, "Given")), given.element);
  const makeText = (i) => new WrittenText({ before, branch: go, label: `Continuation ${i + 1}`, popover });
  const { list, finish, close, element } = answers(body.n, makeText, "Write on from here", (text) => go(before + text.text));
  if (begun) for (const { text } of list) text.element.before(make("p", { class: "begun", dir: "auto" }, begun));
  $("legend").hidden = false;
  $("results").replaceChildren(make("div", {}, givenBox, element));
  reveal($("results"), $("legend"));
  const echoed = new Set(), ended = new Set();
  await stream("v1/completions", body, ({ index, text, logprobs, finish_reason: reason }) => {
    if (body.echo && !echoed.has(index)) {
      echoed.add(index);
      if (index > 0) return;
      given.push(text, fromLists(logprobs, names).filter((token) => !token.special));
      given.finish();
      givenBox.hidden = !given.pieces.length;
      return;
    }
    list[index].text.push(text, logprobs ? fromLists(logprobs, names) : []);
    if (reason) finish(list[index], reason), ended.add(index);
  });
  list.forEach((one, i) => ended.has(i) || finish(one, null));
  close(ended, !givenBox.hidden);
}

/** Write on from another text, with a way back to this one; where an encoder reads what is given, it stays. */
function branch(given, text) {
  if (!$("ask").reportValidity()) return;
  remember(() => { $("prompt").value = given; });
  if (readsSource()) write(given, text);
  else write(text);
}

/** Keep what is shown, for the button Back. */
function remember(restore) {
  earlier.push({ results: $("results").firstChild, body: shownBody, restore });
  $("back").hidden = false;
  $("back").focus({ preventScroll: true }); // what was pressed is gone
}

function back() {
  running?.abort();
  popover.close();
  const { results, body, restore } = earlier.pop();
  restore();
  $("results").replaceChildren(results);
  shownBody = body;
  $("back").hidden = !earlier.length;
  say(`Back, seed ${body.seed}.`);
  redraw();
  keepFocus();
}

/** Nothing is shown, and there is no way back. */
function clear() {
  running?.abort();
  popover.close();
  earlier = [];
  conversation = [];
  conversationId = null;
  shownBody = null;
  $("back").hidden = true;
  $("results").replaceChildren();
  say("");
}

// Conversations ------------------------------------------------------------------------------

const turns = (messages) => messages.map(({ role, content }) => make("section", { class: "turn", "aria-label": role, dir: "auto" }, make("h3", {}, role), content));

/** The conversation is now this one, and the browser stores it. */
function hold(messages) {
  conversation = messages;
  if (!messages.length) return;
  conversationId ??= `${Date.now()}-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  try {
    store({ id: conversationId, model: model().id, system: $("system").value, messages, changed: new Date().toISOString() });
  } catch (error) {
    $("error").textContent = `The browser did not store this conversation: ${error.message} Delete some, or export this one.`;
  }
  listConversations();
}

/** Take a stored conversation up again, with its model where the server has it. */
async function reopen(stored) {
  clear();
  if (models.some(({ id }) => id === stored.model)) $("model").value = stored.model;
  await choose();
  $("system").value = stored.system;
  conversation = stored.messages;
  conversationId = stored.id;
  $("results").replaceChildren(make("div", {}, ...turns(conversation)));
  $("stored").open = false;
  $("message").focus();
}

function download(text, name, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function discard(stored) {
  if (!confirm(`Delete the conversation "${titleOf(stored)}" from this browser?`)) return;
  remove(stored);
  if (stored.id === conversationId) clear();
  listConversations();
  $("stored-title").focus();
  keepFocus();
}

function listConversations() {
  const all = conversations(), act = (text, onclick) => make("button", { class: "act", type: "button", onclick }, text);
  $("stored").hidden = lasting && !all.length;
  $("stored-title").textContent = `Conversations in this ${lasting ? "browser" : "tab"}: ${all.length}`;
  $("stored-list").replaceChildren(...all.map((stored) => {
    const name = `conversation-${stored.changed.slice(0, 19).replaceAll(":", "-")}`, when = new Date(stored.changed).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
    return make("li", {},
      make("button", { class: "title", type: "button", dir: "auto", onclick: () => reopen(stored) }, titleOf(stored)),
      make("span", { class: "quiet" }, `${stored.model}, ${when}`),
      make("span", { class: "tools quiet" }, "Export as",
        act("JSON", () => download(asJson(stored), `${name}.jsonl`, "application/jsonl")),
        act("Markdown", () => download(asMarkdown(stored), `${name}.md`, "text/markdown")),
        act("Delete", () => discard(stored))));
  }));
}

/** Ask for the answer to messages; `begun` is what it begins with. True if an answer came, or is no longer waited for. */
async function converse(messages, begun = null) {
  const body = chatBody(messages, begun), ended = new Set();
  const take = (answer) => hold([...messages, { role: "assistant", content: (begun ?? "") + answer }]);
  const again = (text) => {
    if (!$("ask").reportValidity()) return;
    if (running && list[0].text.text) take(list[0].text.text); // as far as it is written
    const before = conversation;
    remember(() => hold(before));
    converse(messages, text);
  };
  const asked = turns(messages);
  const makeText = (i) => new WrittenText({ before: begun ?? "", branch: again, label: `Answer ${i + 1}`, popover });
  const { list, finish, close: closeEmpty, element } = answers(body.n, makeText, "Go on from this answer", (text) => {
    take(text.text);
    for (const one of list) one.button.setAttribute("aria-pressed", String(one.text === text));
    $("message").focus();
  });
  if (begun) for (const { text } of list) text.element.before(make("p", { class: "begun", dir: "auto" }, begun));
  $("legend").hidden = false;
  $("results").replaceChildren(make("div", {}, ...asked, element));
  reveal(element, asked.at(-1));
  const close = (one, reason) => {
    finish(one, reason);
    one.button.hidden ||= body.n === 1;
    one.button.setAttribute("aria-pressed", String(one === list[0]));
  };
  await stream("v1/chat/completions", body, ({ index, delta, logprobs, finish_reason: reason }) => {
    list[index].text.push(delta.content ?? "", logprobs ? fromEntries(logprobs.content) : []);
    if (reason) close(list[index], reason), ended.add(index);
  });
  list.forEach((one, i) => ended.has(i) || close(one, null));
  if (!element.isConnected) return true; // another conversation, or another answer, is shown by now
  const answered = ended.has(0) || list[0].text.text !== "";
  closeEmpty(ended);
  if (answered) take(list[0].text.text);
  keepFocus();
  return answered;
}

/** What had the focus is gone: the composer has it. */
function keepFocus() {
  if (document.activeElement === document.body) $(mode() === "chat" ? "message" : "prompt").focus({ preventScroll: true });
}

async function send() {
  const content = $("message").value;
  if (!content || running) return; // an answer that is being written is stopped by its button
  $("message").value = "";
  $("message").focus();
  earlier = [];
  $("back").hidden = true;
  if (!(await converse([...conversation, { role: "user", content }]))) $("message").value ||= content;
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

/** What the form asks for; where the last request asked for the same, that one, whose seed is known. */
function request() {
  const chat = mode() === "chat", draft = $("message").value, keyed = key.get() !== null, given = $("prompt").value;
  if (chat && !draft) return { chat, body: shownBody, keyed };
  const fresh = chat ? chatBody([...conversation, { role: "user", content: draft }]) : textBody(given, shownBody?.source === given ? shownBody.prompt : "");
  const same = shownBody && $("seed").value === "" && JSON.stringify({ ...shownBody, seed: 0 }) === JSON.stringify({ ...fresh, seed: 0 });
  return { chat, body: same ? shownBody : fresh, keyed };
}

/** A button that copies the request as `write` puts it. */
function copies(button, name, write) {
  button.addEventListener("click", () => {
    if (!$("ask").reportValidity()) return;
    const { chat, body, keyed } = request();
    if (body === null) say("Write a message first.");
    else copy(write(chat, body, keyed), name);
  });
}

// The form -----------------------------------------------------------------------------------

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  popover.close();
  if (mode() === "chat") return void send();
  earlier = [];
  $("back").hidden = true;
  write($("prompt").value);
});
// a text has lines of its own; a message is sent by Enter, and Shift-Enter breaks its line
for (const [id, sends] of [["prompt", (event) => event.ctrlKey || event.metaKey], ["message", (event) => !event.shiftKey && !event.isComposing]]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !sends(event)) return;
    event.preventDefault();
    $("ask").requestSubmit();
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
$("afresh").addEventListener("click", () => {
  clear();
  $("message").focus();
});
$("model").addEventListener("change", () => {
  clear();
  choose();
});
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => {
    clear();
    dress();
  });
}
copies($("curl"), "curl", (chat, body, keyed) => asCurl(base, chat ? "v1/chat/completions" : "v1/completions", body, keyed));
copies($("python"), "Python", (chat, body, keyed) => asPython(base, chat, body, keyed, ["source", "truncation", "add_generation_prompt", "continue_final_message"]));

readRamps();
// another tab may have changed them
$("stored").addEventListener("toggle", listConversations);
addEventListener("storage", listConversations);
$("stored-note").textContent = lasting
  ? "They are stored in this browser alone, until you delete them."
  : "This browser refuses to store anything for this page, so they are lost when the tab is closed: export those that you want to keep.";
listConversations();
$("tools").append(themeButton());
$("legend").append("Surprisal of each token: ", scaleBar("0", `${MOST_BITS} bits or more`), "Hover over a token, or choose it, for what else the model expected, before temperature and top-p; press an alternative to write on from there.");
open();
