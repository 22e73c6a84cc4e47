// A request as commands: for a shell with curl, and for Python with the package openai. Neither holds the key.

/** A string as a Python literal: JSON's strings are Python's. */
const literal = (value) =>
  value === null ? "None" : value === true ? "True" : value === false ? "False"
    : Array.isArray(value) ? `[${value.map(literal).join(", ")}]`
    : typeof value === "object" ? `{${Object.entries(value).map(([name, v]) => `${JSON.stringify(name)}: ${literal(v)}`).join(", ")}}`
    : JSON.stringify(value);

/** A string in quotes of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(base, path, body, keyed) {
  const header = keyed ? ' \\\n  -H "Authorization: Bearer $PELLUCID_API_KEY"' : "";
  return `curl ${base}${path}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body, null, 2))}\n`;
}

/** `extra` names the options that OpenAI's interface does not have. */
export function asPython(base, chat, body, keyed, extra = []) {
  const entries = Object.entries(body), lines = entries.filter(([name]) => !extra.includes(name)).map(([name, value]) => `    ${name}=${literal(value)},\n`);
  const more = Object.fromEntries(entries.filter(([name]) => extra.includes(name)));
  if (Object.keys(more).length) lines.push(`    extra_body=${literal(more)},\n`);
  const key = keyed ? 'os.environ["PELLUCID_API_KEY"]' : '"none"', text = chat ? "choice.message.content" : "choice.text";
  return `${keyed ? "import os\n\n" : ""}import openai

client = openai.OpenAI(base_url=${JSON.stringify(`${base}v1`)}, api_key=${key})
answer = client.${chat ? "chat.completions" : "completions"}.create(
${lines.join("")})
for choice in answer.choices:
    print(${text})
`;
}
