// The page Training: how the run went, and when its heads formed. A click on a step moves every page to it.

import { html, useState } from "./preact.js";
import { route, useJson, useLines } from "./api.js";
import { Lines } from "./charts.js";
import { Choice, Failed, Num, Panel, Term, Toggle, Waiting, alike, plural } from "./parts.js";
import { addDefaults } from "./state.js";

addDefaults({ kind: "induction", onPrompt: false });
export const page = { name: "training", title: "Training", Page };

const KINDS = {
  induction: "induction",
  previous: "previous token",
  duplicate: "duplicate token",
  first: "first token",
  attended_rank: "attended token's rank",
};
/** Lines that are drawn: the heads that score highest at any step. */
const MOST_LINES = 5;

function Page({ view, set, model }) {
  const run = useJson("api/run");
  const nearest = (step) =>
    model.steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), model.steps[0]);
  const go = (step) => model.steps.length && set({ checkpoint: String(nearest(step)) });
  const shared = { view, set, model, go };
  return html`<${Waiting} of=${run} what="reading the run" />
    ${run.value?.why_none ? html`<${Panel} title="Training"><p>${run.value.why_none}</p><//>` : null}
    ${run.value && !run.value.why_none ? html`<${Curves} run=${run.value} ...${shared} />` : null}
    ${run.value && !run.value.why_none && !model.kind ? html`<${ByPosition} key=${view.checkpoint} view=${view} />` : null}
    ${model.n_heads && !model.masked && !model.reads_source ? html`<${HeadsForming} ...${shared} textA=${view.a || model.example} />` : null}`;
}

function Curves({ run, model, go }) {
  return html`<${Panel} title="Curves" code=${run.code} not="losses of single steps: each point is the mean of its neighbours where a run is long. The points of held-out text are of a part of it, where it is long; the number below is of all that was read at the end.">
    ${run.steps.length > 1 ? html`<p class="quiet">Checkpoints at steps ${run.steps.join(", ")}; the line marks the one that every page shows. A click moves it.</p>` : null}
    <div class="curves">${run.curves.map(
      (curve) => html`<div><h3>${curve.title}${curve.unit ? `, ${curve.unit}` : ""}</h3>
      <${Lines} label=${curve.title} xName="step" height=${220} series=${curve.lines.map((line) => ({ name: line.name, x: line.points.map(([x]) => x), y: line.points.map(([, y]) => y) }))} mark=${model.step ?? null} onSelect=${go} />
      <p class="quiet">At the end: ${curve.lines.map((line, k) => html`${k ? ", " : ""}${line.name} <${Num} name=${`curve.${line.name}`} value=${line.last} said=${alike(curve.lines.map((one) => one.last))} />`)}${curve.unit ? ` ${curve.unit}` : ""}.</p></div>`,
    )}</div>
  <//>`;
}

/** The held-out loss by how much of the context is there; measured when it is asked for. */
function ByPosition({ view }) {
  const [asked, ask] = useState(false),
    run = useLines(
      asked ? route("api/run/positions", { checkpoint: view.checkpoint || null }) : null,
      null,
      (_, line) => line,
      [asked],
    );
  const got = run.value?.points && run.value,
    [first, last] = got ? [got.points[0], got.points.at(-1)] : [];
  return html`<${Panel} title="Loss by position" id="positions" code=${got?.code} not="why a longer context helps: the loss falls along the window as far as the model uses what it has read.">
    <p class="quiet">How much better is a token predicted after many tokens than after few? Measured on the held-out text, in the windows of the run's own evaluation.</p>
    ${asked ? null : html`<button type="button" class="act small" onClick=${() => ask(true)}>Measure</button>`}
    <${Failed} of=${run} />
    ${run.loading ? html`<p class="quiet" role="status" data-waiting>${got ? `${got.done.toLocaleString("en")} of ${got.of.toLocaleString("en")} tokens` : (run.value?.doing ?? "asking")} \u2026 ${run.seconds.toFixed(1)} s</p>` : null}
    ${
      got
        ? html`<${Lines} label="Held-out loss by position" xName="tokens read before" yName="nats per token" series=${[{ name: "held out", x: got.points.map(([from, to]) => (from + to) / 2), y: got.points.map((point) => point[2]) }]} />
      <p class="quiet">After ${said(first)} <${Num} name="position.first" value=${first[2]} />, after ${said(last)} <${Num} name="position.last" value=${last[2]} />, on average <${Num} name="position.mean" value=${got.mean} /> nats per token. What the context is worth, the last less the first: <${Num} name="position.gain" value=${last[2] - first[2]} /> (its <${Term} t="in-context learning score" />).</p>`
        : null
    }
  <//>`;
}

const said = ([from, to]) => (from === to ? plural(from, "token") : `${from} to ${to} tokens`);

const foldHeads = (value, line) =>
  line.kind === "start" ? { ...line, rows: [] } : { ...value, rows: [...value.rows, line] };

function HeadsForming({ view, set, model, go, textA }) {
  const body = { text: view.onPrompt ? textA : null, steps: null };
  const run = useLines("api/run/heads", body, foldHeads, [JSON.stringify(body)]);
  const got = run.value,
    rows = got?.rows ?? [],
    several = (got?.steps.length ?? 0) > 2;
  const here = rows.find((row) => row.step === model.step) ?? rows.at(-1);
  const scores = alike(
    here
      ? Object.keys(KINDS)
          .filter((kind) => here.best[kind])
          .map((kind) => scoreOf(here, kind))
      : [],
  );
  const turn = (kind) => {
    const [layer, head] = here.best[kind];
    set({ page: "attention", layer, head });
  };
  return html`<${Panel} title=${several ? "Heads forming" : "What the heads do"} code=${got?.code} id="heads" not="what a head is for: a score says how much it attends in one way on this text, and many heads do several things.">
    ${view.edits.length ? html`<p class="quiet">This panel shows the model without the edits above.</p>` : null}
    <div class="row">${several ? html`<${Choice} label="Score" value=${view.kind} options=${KINDS} onChange=${(kind) => set({ kind })} />` : null}<${Toggle} label="on prompt A, not on repeated random tokens" value=${view.onPrompt} onChange=${(onPrompt) => set({ onPrompt })} /></div>
    <${Failed} of=${run} />
    <p class="quiet" aria-live="polite" data-done=${rows.length} data-total=${got?.steps.length ?? ""}>${several ? html`Each line is a head, its height its score: <${Term} t=${`${KINDS[view.kind]} head`}>${KINDS[view.kind]}<//>. ` : ""}${run.loading && several ? `${rows.length} of ${got.steps.length} checkpoints \u2026 ${run.seconds.toFixed(1)} s` : ""}</p>
    ${got && model.steps.length && got.steps.length < 4 ? html`<p class="quiet">This run kept ${plural(got.steps.length, "checkpoint")}. <code>pellucid train TEXT --set checkpoint_every=50 --set keep_last=100</code> keeps more, so that you see when a head comes about.</p>` : null}
    ${several && rows.length > 1 ? html`<${Lines} label=${`heads, ${KINDS[view.kind]}`} xName="step" yName="score" series=${lines(rows, view.kind)} mark=${model.step ?? null} onSelect=${go} />` : null}
    ${
      here
        ? html`<h3>${here.step === null ? "On" : `At step ${here.step}, on`} ${here.text}</h3>
      <table class="plain"><thead><tr><th>kind</th><th>head</th><th>score</th><th></th></tr></thead><tbody>${Object.keys(
        KINDS,
      ).map((kind) => {
        if (!here.best[kind])
          return html`<tr><td><${Term} t=${`${KINDS[kind]} head`}>${KINDS[kind]}<//></td><td colspan="3" class="quiet">nothing to attend to in this text</td></tr>`;
        const [layer, head] = here.best[kind],
          score = scoreOf(here, kind);
        return html`<tr><td><${Term} t=${`${KINDS[kind]} head`}>${KINDS[kind]}<//></td><td><button type="button" class="link" onClick=${() => turn(kind)}>${layer}.${head}</button></td><td class="number"><${Num} name=${`heads.${kind}`} value=${score} said=${scores} /></td><td class="quiet">${strong(kind, score) ? "" : "weak"}</td></tr>`;
      })}</tbody></table><p class="quiet">Block and number of the head with the highest score, from 0. Below half of the attention (for the attended token's rank, below 0.5) a score is called weak.</p>
      ${Object.keys(KINDS).every((kind) => !here.best[kind] || !strong(kind, scoreOf(here, kind))) ? html`<p>No head of this model has a high score${model.n_layers < 2 ? ": it has one block, and a head that continues repetitions needs two" : ": it is small, or was trained briefly"}. <code>pellucid look</code> without a model opens one whose heads are known.</p>` : null}`
        : null
    }
  <//>`;
}

const scoreOf = (row, kind) => row.scores[kind][row.best[kind][0]][row.best[kind][1]];
const strong = (kind, score) => score !== null && score >= 0.5;

/** The heads with the highest scores at any step, as lines over the steps. */
function lines(rows, kind) {
  const heads = rows[0].scores[kind].flatMap((row, l) => row.map((_, h) => [l, h]));
  const most = ([l, h]) => Math.max(...rows.map((row) => row.scores[kind][l][h] ?? -1));
  return heads
    .sort((one, other) => most(other) - most(one))
    .slice(0, MOST_LINES)
    .map(([l, h]) => ({
      name: `${l}.${h}`,
      x: rows.map((row) => row.step),
      y: rows.map((row) => row.scores[kind][l][h]),
    }));
}
