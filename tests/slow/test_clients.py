"""Other projects' clients, unmodified, against a running server: lm-eval, langchain-openai, litellm, llm and curl."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tests.serve.conftest import serving_models

import pellucid
from drawing import make_network
from pellucid.language_model import LanguageModel
from pellucid.presets import preset
from pellucid.serve.batching import BatchingEngine
from pellucid.serve.served import ServedModel
from pellucid.text.chat_template import CHATML_MARKERS, ChatTemplate
from pellucid.text.tokenizers.tokenizer import ByteTokenizer

pytestmark = pytest.mark.slow
N_CTX = 128
PROMPT = "First Citizen: before we proceed"

#: lm-eval on a task of each kind that asks a model for something; its answers go to the file named last
EVALUATE = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
model, arguments, folder, to = sys.argv[1:]
manager = TaskManager(include_path=folder, include_defaults=False)
result = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=["choice", "rolling", "written"],
    task_manager=manager, batch_size=1, log_samples=True, bootstrap_iters=0)
samples = {task: sorted(of, key=lambda one: one["doc_id"]) for task, of in result["samples"].items()}
json.dump({task: [one["resps"] for one in of] for task, of in samples.items()}, open(to, "w"), default=str)
"""
TASKS = {
    "choice": "output_type: multiple_choice\ndoc_to_text: '{{context}}'\ndoc_to_choice: choices\ndoc_to_target: 0\n"
    "metric_list: [{metric: acc}]\n",
    "rolling": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
    "metric_list: [{metric: bits_per_byte}]\n",
    "written": "output_type: generate_until\ndoc_to_text: '{{context}}'\ndoc_to_target: '{{text}}'\n"
    "generation_kwargs: {until: ['e'], max_gen_toks: 24, do_sample: false}\nmetric_list: [{metric: exact_match}]\n",
}
OTHERS = """
import json, os, sys
url, prompt = sys.argv[1:]
import litellm
from langchain_openai import OpenAI, ChatOpenAI, OpenAIEmbeddings
fixed = {"temperature": 0, "max_tokens": 20}
told = {}
model = "text-completion-openai/plain"
said = {"messages": [{"role": "user", "content": prompt}], "api_base": url, **fixed}
told["litellm"] = litellm.text_completion(model=model, prompt=prompt, api_base=url, **fixed).choices[0].text
stream = litellm.text_completion(model=model, prompt=prompt, api_base=url, stream=True, **fixed)
told["litellm stream"] = "".join(chunk.choices[0].text or "" for chunk in stream)
told["litellm chat"] = litellm.completion(model="openai/chatty", **said).choices[0].message.content
told["langchain"] = OpenAI(model="plain", base_url=url, **fixed).invoke(prompt)
told["langchain stream"] = "".join(OpenAI(model="plain", base_url=url, **fixed).stream(prompt))
told["langchain chat"] = ChatOpenAI(model="chatty", base_url=url, **fixed).invoke(prompt).content
chunks = ChatOpenAI(model="chatty", base_url=url, stream_usage=True, **fixed).stream(prompt)
told["langchain chat stream"] = "".join(chunk.content for chunk in chunks)
vectors = OpenAIEmbeddings(model="plain", base_url=url, check_embedding_ctx_length=False)
told["vector"] = vectors.embed_query(prompt)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model and one for conversations, both saved; the first exported for transformers too."""
    folder = tmp_path_factory.mktemp("clients")
    sizes = {"n_layers": 2, "d_model": 32, "attention.n_heads": 2, "n_ctx": N_CTX}
    tokenizers = {"plain": ByteTokenizer(), "chatty": ByteTokenizer().with_special(*CHATML_MARKERS)}
    made = {}
    for name, tokenizer in tokenizers.items():
        network = make_network(preset("small", tokenizer.n_vocab).with_fields(sizes), dtype=torch.float32)
        made[name] = LanguageModel(network, tokenizer, {}, ChatTemplate() if name == "chatty" else None)
    made["plain"].save(folder / "plain")
    pellucid.convert(folder / "plain", folder / "exported")
    return folder, made


@pytest.fixture(scope="module")
def url(models):
    served = [
        ServedModel(name, BatchingEngine(model.network, model.tokenizer), model.chat_template)
        for name, model in models[1].items()
    ]
    with serving_models(*served) as running:
        yield running.url


def run(python: Path, code: str, *arguments: str) -> str:
    """What a script prints in the environment of the clients."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= offline | {"OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [python, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_lm_eval_finds_what_it_finds_with_transformers(needs_clients, models, url, shakespeare, tmp_path):
    """Log-likelihoods, rolling ones and texts are those of its `hf` on the exported model, to 1e-4 or 1e-6 of them."""
    lines = [line for line in shakespeare.splitlines() if len(line) > 40][:12]
    rows = [
        {"context": line[:20], "choices": [line[20:], lines[i - 1][20:], lines[i - 2][-9:]], "text": line * 5}
        for i, line in enumerate(lines)
    ]
    for row in rows:
        # what the model itself would write, so that lm-eval has greedy choices to find
        row["choices"].append(models[1]["plain"].generate(row["context"], max_tokens=2, temperature=0).text)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, text in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(head + "test_split: test\ntarget_delimiter: ''\n" + text)
    # lm-eval keeps one token of a server's max_length for the answer, and one of a window for its context
    asked = (
        f"model=plain,base_url={url}/v1/completions,tokenizer_backend=remote,max_length={N_CTX + 1},num_concurrent=4"
    )
    loaded = f"pretrained={models[0]}/exported,dtype=float32,device=cpu,max_length={N_CTX - 1}"
    answers = []
    for kind, arguments in (("local-completions", asked), ("hf", loaded)):
        to = tmp_path / f"{kind}.json"
        run(needs_clients, EVALUATE, kind, arguments, str(tmp_path), str(to))
        answers.append(json.loads(to.read_text()))
    served, local = answers
    assert served["written"] == local["written"]
    for mine, theirs in zip(served["choice"], local["choice"], strict=True):
        for ((log_prob, greedy),), ((other, as_greedy),) in zip(mine, theirs, strict=True):
            # one number of float32 there, whose neighbours lie 6e-5 apart near -828
            assert float(log_prob) == pytest.approx(float(other), rel=1e-6, abs=1e-4)
            assert greedy == as_greedy
    flags = [greedy for of in served["choice"] for ((_, greedy),) in of]
    assert {*flags} == {True, False}
    for ((mine,),), ((theirs,),) in zip(served["rolling"], local["rolling"], strict=True):
        # a sum of some two hundred numbers, in float32 there
        assert float(mine) == pytest.approx(float(theirs), rel=1e-6, abs=1e-4)


def test_langchain_and_litellm_get_the_texts_of_generate(needs_clients, models, url):
    plain, chatty = models[1]["plain"], models[1]["chatty"]
    expected = plain.generate(PROMPT, max_tokens=20, temperature=0).text
    ids = chatty.chat_template.encode([{"role": "user", "content": PROMPT}], chatty.tokenizer)
    decoding = pellucid.generate.decode.generate_ids(
        chatty.network,
        [ids],
        max_tokens=20,
        sampling=pellucid.generate.Sampling(temperature=0),
        stop_ids=chatty.chat_template.end_ids(chatty.tokenizer),
    )
    list(decoding)
    answer = chatty.tokenizer.decode(decoding.rows[0].generated)
    told = json.loads(run(needs_clients, OTHERS, f"{url}/v1", PROMPT).splitlines()[-1])
    assert len(told.pop("vector")) == 32
    for name, text in told.items():
        assert text == (answer if "chat" in name else expected), name


def test_llm_and_curl_get_the_text_of_generate(needs_clients, models, url, tmp_path):
    expected = models[1]["plain"].generate(PROMPT, max_tokens=20, temperature=0).text
    described = f"- model_id: plain\n  model_name: plain\n  api_base: {url}/v1\n  completion: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(described)
    options = ["-m", "plain", "-o", "max_tokens", "20", "-o", "temperature", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for more in ([], ["--no-stream"]):
        command = [needs_clients.with_name("llm"), PROMPT, *options, *more]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
        assert done.stdout.decode().removesuffix("\n") == expected
    body = json.dumps({"model": "plain", "prompt": PROMPT, "max_tokens": 20, "temperature": 0})
    curl = ["curl", "-sS", f"{url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(curl, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["text"] == expected
