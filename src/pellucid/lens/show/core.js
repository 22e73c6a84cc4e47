// What every panel uses: the data, the chosen position and head, and canvases.

const figure = JSON.parse(document.getElementById("figure").textContent);
const panels = {}; // kind -> function(panel, body), filled by the files below
const state = { position: figure.position, layer: figure.head[0], head: figure.head[1], moved: false };

/** Change what is chosen; panels follow at the next frame. `moved` says that a position has been chosen by hand. */
function choose(changes) {
  Object.assign(state, changes, "position" in changes ? { moved: true } : {});
  redraw();
}

/** The numbers of a packed tensor. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.gzip), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  return new { uint8: Uint8Array, int32: Int32Array, float32: Float32Array }[packed.type](buffer);
}

// Canvases -----------------------------------------------------------------------------------

/** Size a canvas for the screen's pixels and return its context, scaled to CSS pixels. */
function paint(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** As much of a text as fits into a width. */
function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(text.slice(0, end) + "\u2026").width > width) end--;
  return text.slice(0, end) + "\u2026";
}
