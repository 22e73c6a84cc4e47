// What the browser stores for this page: the key in its tab, and conversations until they are deleted.

/** The browser's own storage; where it refuses, as in some private windows, one that lasts as long as the tab. */
function storage(name) {
  try {
    const real = window[name];
    real.getItem("");
    return real;
  } catch {
    const map = new Map();
    return {
      getItem: (key) => map.get(key) ?? null,
      setItem: (key, value) => map.set(key, value),
      removeItem: (key) => map.delete(key),
      key: (i) => [...map.keys()][i],
      get length() {
        return map.size;
      },
    };
  }
}

const session = storage("sessionStorage"), local = storage("localStorage");
const KEY = "pellucid-key", CONVERSATION = "pellucid-conversation-";

export const key = {
  get: () => session.getItem(KEY),
  keep: (value) => session.setItem(KEY, value),
  forget: () => session.removeItem(KEY),
};

/** Whether conversations are still there when the tab is closed. */
export const lasting = local instanceof Storage;

/** The stored conversations, the one that was changed last first: {id, model, system, messages, changed}. */
export function conversations() {
  const names = Array.from({ length: local.length }, (_, i) => local.key(i)).filter((name) => name.startsWith(CONVERSATION));
  return names.map((name) => JSON.parse(local.getItem(name))).sort((a, b) => b.changed.localeCompare(a.changed));
}

/** Store a conversation in the place of the one with its id. Raises QuotaExceededError where the browser has no more room. */
export const store = (conversation) => local.setItem(CONVERSATION + conversation.id, JSON.stringify(conversation));
export const remove = ({ id }) => local.removeItem(CONVERSATION + id);

/** What a list calls a conversation: the beginning of its first message. */
export function titleOf({ messages }) {
  const text = messages[0].content.trim().replace(/\s+/g, " ");
  return text.length > 80 ? `${text.slice(0, 80)}\u2026` : text || "(white space)";
}

const allMessages = ({ system, messages }) => (system ? [{ role: "system", content: system }, ...messages] : messages);

/** A conversation as a line of JSON, with its messages as OpenAI's interface and `pellucid train` take them. */
export const asJson = (conversation) => {
  const { model, changed } = conversation;
  return `${JSON.stringify({ model, changed, messages: allMessages(conversation) })}\n`;
};

/** A conversation as Markdown, with a heading for each message. */
export const asMarkdown = (conversation) => {
  const turns = allMessages(conversation).map(({ role, content }) => `## ${role}\n\n${content}\n`);
  return `# ${titleOf(conversation)}\n\n${conversation.model}, ${conversation.changed}\n\n${turns.join("\n")}`;
};
