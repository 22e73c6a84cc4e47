// Requests to the server that sent this page, with the key where it has one.

import { key } from "./storage.js";

/** An answer that is none: its status, the server's sentence as the message, and the field of the request it is about. */
export class ServerError extends Error {
  constructor(status, message, field = null) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** GET a path, or POST a body to it as JSON. Raises ServerError for an answer that is none. */
export async function ask(path, body = null, signal = null) {
  const headers = body === null ? {} : { "Content-Type": "application/json" };
  if (key.get() !== null) headers.Authorization = `Bearer ${key.get()}`;
  const method = body === null ? "GET" : "POST";
  const response = await fetch(path, { method, headers, signal, body: body === null ? undefined : JSON.stringify(body) });
  if (response.ok) return response;
  let error = { message: `the server answered with status ${response.status}` };
  try {
    error = (await response.json()).error ?? error;
  } catch { /* the answer of something between this page and the server */ }
  throw new ServerError(response.status, error.message, error.param);
}

/** The events of a streamed answer as objects. Raises ServerError for an error event, and for a stream that breaks off. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError(0, "the connection ended before the answer did");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ServerError(event.status ?? 500, event.error.message, event.error.param);
      yield event;
    }
  }
}
