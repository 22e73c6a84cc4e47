"""What the inspector holds: a model at its checkpoints, the latest traces, and the one thread that computes."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from pellucid.edits import Edit
from pellucid.lens.core.inputs import InputError, InputOptions, last_tokens
from pellucid.lens.core.recording import TraceError
from pellucid.lens.trace import Trace, trace
from pellucid.look.page_edits import resolve_edits
from pellucid.look.predictor_trace import PredictorTrace, predictor_trace
from pellucid.model.fingerprint import Fingerprint
from pellucid.predictors.predictor import Predictor
from pellucid.serve.error_answers import error_answer
from pellucid.serve.protocol import MAX_EDITS, EditBody, Ids
from pellucid.text_model import Model

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
AnyModel = Model | Predictor
#: the status that nginx gives a request whose client has left
CLIENT_LEFT = 499
#: the status of a trace that is no longer kept, or whose model's weights have changed: the page asks for it again
GONE = 410
#: models of other checkpoints that stay loaded
MAX_MODELS = 3
#: long answers that are kept, so that who comes back to a page does not wait again
MAX_ANSWERS = 8
#: results that are kept: scores of heads on a visitor's text, panels of circuits at an offset
MAX_RESULTS = 128


def reading_options(source: str | None, bos: bool) -> InputOptions:
    """How texts are read: only what differs from the default, so that copied code is short."""
    options: InputOptions = {}
    if source is not None:
        options["source"] = source
    if bos:
        options["bos"] = True
    return options


class PromptBody(BaseModel):
    """What a model reads: a text or ids, at a checkpoint, under edits.

    checkpoint  the number of a step; "" for the weights that the inspector was opened with
    source      the input of the encoder, where there is one
    bos         put the separator before the text, unless the model's own tokenizer puts something there
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    text: Annotated[str, Field(max_length=2**19)] = ""
    ids: Annotated[Ids, Field(max_length=2**17)] | None = None
    source: Annotated[str, Field(max_length=2**19)] | None = None
    bos: bool = False
    checkpoint: Annotated[str, Field(max_length=20, pattern=r"^\d*$")] = ""
    edits: Annotated[list[EditBody], Field(max_length=MAX_EDITS)] = []

    def options(self) -> InputOptions:
        """How its texts are read."""
        return reading_options(self.source, self.bos)

    def key(self) -> str:
        """The same for prompts that give the same trace, and different for others."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:24]


class Session:
    """A model at its checkpoints, the latest traces by their keys, and one thread in which everything is computed.

    model   the model that was opened
    name    what the page calls it
    load    opens the run at the checkpoint of a step; None where there are no checkpoints
    steps   the steps that have a checkpoint, in order
    budget  bytes of tensors that traces may keep; the trace that was used longest ago goes first
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        name: str = "model",
        load: Callable[[int], AnyModel] | None = None,
        steps: Sequence[int] = (),
        budget: int = 2**29,
    ):
        self.opened, self.name, self.load, self.steps, self.budget = model, name, load, tuple(steps), budget
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="pellucid look")
        self.traces: OrderedDict[str, tuple[PromptBody, Trace | PredictorTrace]] = OrderedDict()
        self.models: OrderedDict[int, AnyModel] = OrderedDict()
        #: what depends on no weights and no visitor, such as counted n-grams, by a name that a page's module chooses
        self.results: dict[Any, Any] = {}
        self.of_weights: OrderedDict[Any, Any] = OrderedDict()
        self.weights = None if isinstance(model, Predictor) else Fingerprint(model.network)
        self.answers: OrderedDict[Any, list[Mapping[str, Any]]] = OrderedDict()

    # Models and traces: call these in the thread ----------------------------------------------

    def model(self, checkpoint: str = "") -> AnyModel:
        """The model at the checkpoint of a step, "" for the opened one. Raises InputError for unknown steps."""
        opened = self.opened.provenance
        step = int(checkpoint) if checkpoint else opened.get("step")
        is_opened = step == opened.get("step") and not (opened.get("of_shorter_run") and step in self.steps)
        if not checkpoint or is_opened:
            return self.opened
        if self.load is None or step not in self.steps:
            known = ", ".join(map(str, self.steps)) or "none"
            raise InputError(f"checkpoint {checkpoint}: this model has checkpoints of the steps {known}")
        if step not in self.models:
            self.models[step] = self.load(step)
        self.models.move_to_end(step)
        while len(self.models) > MAX_MODELS:
            self.models.popitem(last=False)
        return self.models[step]

    def transformer(self, checkpoint: str = "") -> Model:
        """The same, for pages that predictors do not have."""
        model = self.model(checkpoint)
        assert isinstance(model, Model)
        return model

    def once(self, key: Any, compute: Callable[[], Result]) -> Result:
        """A result about the models' weights that is computed once; the one that was used longest ago goes first."""
        self.forget_other_weights()
        if key not in self.of_weights:
            self.of_weights[key] = compute()
        self.of_weights.move_to_end(key)
        while len(self.of_weights) > MAX_RESULTS:
            self.of_weights.popitem(last=False)
        return self.of_weights[key]

    def forget_other_weights(self) -> None:
        """Drop what was computed of the opened model before its program changed the weights."""
        if self.weights is not None and self.weights.changed():
            self.weights = Fingerprint(self.opened.network)
            for results in (self.traces, self.answers, self.of_weights):
                results.clear()

    @property
    def predictor_kind(self) -> str:
        """The kind of a predictor that is no transformer (`pellucid.predictors`); "" for a transformer."""
        return self.opened.kind if isinstance(self.opened, Predictor) else ""

    def fitted(self, prompt: PromptBody) -> tuple[PromptBody, str]:
        """The prompt, cut to its last tokens where the model reads fewer; and a sentence that says so, or ""."""
        model = self.model(prompt.checkpoint)
        if isinstance(model, Predictor) or prompt.ids is not None or model.architecture.encoder is not None:
            return prompt, ""
        ids, note = last_tokens(model, prompt.text, prompt.options().get("bos"))
        if isinstance(ids, str):  # all of the text
            return prompt, ""
        return prompt.model_copy(update={"ids": ids, "text": model.tokenizer.decode(ids)}), note

    def trace(self, prompt: PromptBody) -> Trace | PredictorTrace:
        """The trace of a prompt: a kept one, or a new one."""
        self.forget_other_weights()
        key = prompt.key()
        if key not in self.traces:
            self.traces[key] = prompt, self.compute_trace(prompt)
        self.traces.move_to_end(key)
        total = sum(trace.nbytes for _, trace in self.traces.values())
        while total > self.budget and len(self.traces) > 1:
            _, (_, oldest) = self.traces.popitem(last=False)
            total -= oldest.nbytes
        return self.traces[key][1]

    def compute_trace(self, prompt: PromptBody) -> Trace | PredictorTrace:
        """A trace of a prompt, which is not kept."""
        text = prompt.text if prompt.ids is None else prompt.ids
        model = self.model(prompt.checkpoint)
        if not isinstance(model, Predictor):
            return trace(model, text, edits=self.edits(prompt), **prompt.options())
        if prompt.edits or prompt.source is not None:
            raise InputError(f"a predictor of kind {model.kind} has no tensors to edit and reads no source")
        return predictor_trace(model, text, bos=prompt.bos)

    def edits(self, prompt: PromptBody) -> list[Edit]:
        """The edits of a prompt, with their values computed (`pellucid.look.page_edits`)."""
        return resolve_edits(prompt.edits, self.transformer(prompt.checkpoint), **prompt.options())

    def kept_reading(self, trace_id: str) -> Trace | PredictorTrace:
        """The trace with this key; GONE where it has gone, which the page answers by asking for it again."""
        if trace_id not in self.traces:
            raise HTTPException(GONE, "this trace is no longer kept: send its prompt to /api/trace again")
        self.traces.move_to_end(trace_id)
        return self.traces[trace_id][1]

    def kept_trace(self, trace_id: str) -> Trace:
        """`kept_reading` for what only transformers have. Raises InputError for other predictors."""
        trace = self.kept_reading(trace_id)
        if isinstance(trace, PredictorTrace):
            raise InputError(f"a predictor of kind {trace.predictor.kind} has none of a transformer's tensors")
        return trace

    def kept_predictor(self, trace_id: str) -> PredictorTrace:
        """`kept_reading` for what only predictors without attention have. Raises InputError for transformers."""
        trace = self.kept_reading(trace_id)
        if not isinstance(trace, PredictorTrace):
            raise InputError("a transformer is no table of counts: ask for its tensors")
        return trace

    def prompt_of(self, trace_id: str) -> PromptBody:
        """The prompt of a kept trace."""
        self.kept_reading(trace_id)
        return self.traces[trace_id][0]

    def kept_lines(self, key: Any, lines: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The lines of a long answer: those of an earlier answer with this key that came to its end, or new ones."""
        if key in self.answers:
            self.answers.move_to_end(key)
            yield from self.answers[key]
            return
        sent = []
        for line in lines:
            sent.append(line)
            yield line
        self.answers[key] = sent
        while len(self.answers) > MAX_ANSWERS:
            self.answers.popitem(last=False)

    # The thread: call these in the server -----------------------------------------------------

    async def compute(
        self,
        request: Request,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call a function in the thread. It is not begun where the client has left while it waited for its turn."""
        future = self.thread.submit(function, *arguments, **options)
        answer = asyncio.wrap_future(future)
        leaving = asyncio.create_task(has_left(request))
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                raise HTTPException(CLIENT_LEFT, "the client has left")
            return answer.result()
        finally:
            leaving.cancel()

    def stream(self, objects: Iterator[Mapping[str, Any]]) -> StreamingResponse:
        """The objects that a generator yields, one line of JSON each, as they come; each step runs in the thread.

        A last line {"error": "..."} says what ended the generator early. The generator is closed when the page goes
        elsewhere.
        """

        async def lines() -> AsyncIterator[str]:
            loop, ended = asyncio.get_running_loop(), object()
            try:
                while (item := await loop.run_in_executor(self.thread, next, objects, ended)) is not ended:
                    yield json.dumps(item, allow_nan=False) + "\n"
            except Exception as error:
                status, body = error_answer(error)
                status = GONE if isinstance(error, TraceError) else status
                yield json.dumps({"error": body["error"]["message"], "status": status}) + "\n"
            finally:
                if close := getattr(objects, "close", None):
                    # in the thread too, since the generator may be running there
                    self.thread.submit(close)

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-cache"})


async def has_left(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
