"""Training on conversations: the loss of a plain loop in transformers, new tokens, adapters, and what a run writes."""

import gzip
import json

import numpy as np
import pytest
import torch
from kinds import CHAT_FIELDS, write_conversations
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import pellucid
from pellucid.hub.write import write_tokenizer
from pellucid.runs.checkpoint import load_checkpoint
from pellucid.runs.metrics import read_metrics
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder
from pellucid.text.chat_template import CHATML, CHATML_MARKERS, ChatError, ChatTemplate
from pellucid.text.read.conversations import (
    ConversationsError,
    holds_conversations,
    read_conversations,
    split_conversations,
)
from pellucid.text.tokenizers.tokenizer import ByteTokenizer, learn_tokenizer
from pellucid.text.tokens.conversations import pack, prepare_conversations
from pellucid.training.chat import ChatData

FIELDS = {"device": "cpu", "precision": "float32", "compile": "no", "attention": "fused", "sample_every": 0}
#: without samples, which take longer than the steps
QUIET = CHAT_FIELDS | {"sample_every": 0}
#: the base has more rows than its tokenizer has ids, as many published models do
pytestmark = pytest.mark.filterwarnings("ignore:.*the tokenizer has 300 ids, the embedding 301 rows")
#: ChatML with the mark by which transformers finds what the assistant writes
MARKED_CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + "
    "'<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def conversations(tmp_path_factory):
    return write_conversations(tmp_path_factory.mktemp("conversations"), 40)


@pytest.fixture(scope="module")
def base(tmp_path_factory, shakespeare):
    """A random model of transformers with more rows than its tokenizer has ids."""
    folder = tmp_path_factory.mktemp("models") / "base"
    tokenizer = learn_tokenizer("bpe", [shakespeare[:20_000]], 300)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=301, max_position_embeddings=192, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder, tokenizer, 192)
    return folder


@pytest.fixture(scope="module")
def adapted(base, conversations, tmp_path_factory):
    """A run of adapters on it, which adds ChatML's two markers."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    fields = FIELDS | {"adapt.rank": 2, "batch": 2, "evaluate_every": 4}
    return pellucid.train(conversations, out=folder, from_model=base, fields=fields, steps=8)


def data_of(run):
    """The batches of a run."""
    model = pellucid.load(run.path, device="cpu")
    split = split_conversations(read_conversations(run.recipe.inputs), 0.1, run.recipe.train.seed)
    tokens = prepare_conversations(split, model.tokenizer, model.chat_template, cache_folder())
    return tokens, ChatData(tokens, run.recipe, torch.device("cpu"))


@pytest.mark.slow
def test_training_is_a_plain_loop_of_transformers(base, conversations, tmp_path):
    """The same model, resized and started at the mean, one conversation at a time, with AdamW: the same losses."""
    fields = FIELDS | {"optimizer": "adamw", "learning_rate": 1e-3, "schedule": "constant", "warmup": 0}
    fields |= {"batch": 3, "accumulate": 2, "weight_decay": 0.0, "clip": 0.0, "train.eps": 1e-5}
    run = pellucid.train(conversations, out=tmp_path / "run", from_model=base, fields=fields, steps=4)
    ours = [row["loss"] for row in read_metrics(run.path / "metrics.jsonl") if "loss" in row]

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    old = len(tokenizer) - 2
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            table[old:] = table[:old].double().mean(0).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.0)
    tokens, data = data_of(run)
    numbers = tokens.split.numbers("train")
    theirs = []
    for step in range(4):
        rows = [
            row
            for batch in (data.at(step, micro, 2) for micro in range(2))
            for row in zip(batch.inputs, batch.documents, batch.counts, strict=True)
        ]
        chosen = [find_conversations(*row, tokens) for row in rows]
        encoded = [
            tokenizer.apply_chat_template(
                tokens.split.corpus.rows[numbers[k]],
                chat_template=MARKED_CHATML,
                return_assistant_tokens_mask=True,
                return_dict=True,
            )
            for row in chosen
            for k in row
        ]
        n_scored = sum(sum(one["assistant_masks"]) for one in encoded)
        total = torch.zeros(())
        for one in encoded:
            ids = torch.tensor([one["input_ids"]])
            labels = torch.tensor(one["input_ids"]).where(torch.tensor(one["assistant_masks"]) == 1, -100)
            logits = model(ids).logits[0, :-1]
            total = total + F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum") / n_scored
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        theirs.append(total.item())
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert theirs[-1] < theirs[0] - 0.02


def find_conversations(inputs, documents, counts, tokens):
    """The conversations that a row holds, by their ids."""
    part, numbers = tokens.part("train"), []
    for document in documents[counts].unique().tolist():
        own = inputs[documents == document].numpy()
        numbers.append(
            next(
                k
                for k, (a, n) in enumerate(zip(part.starts, part.lengths, strict=True))
                if k not in numbers and np.array_equal(part.ids[a : a + n - 1], own)
            )
        )
    return numbers


def test_packing_fills_rows_and_loses_nothing():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 60, 200)
    rows = pack(lengths, np.arange(1000, 1200), 64)
    assert sorted(np.concatenate(rows).tolist()) == list(range(1000, 1200))
    filled = [int(lengths[row - 1000].sum()) for row in rows]
    assert max(filled) <= 64
    assert len(rows) <= 1.05 * sum(filled) / 64 + 1


def test_the_loss_is_that_of_each_conversation_alone(adapted):
    """Held-out loss: what the assistant writes, and nothing of another conversation in the row."""
    model = pellucid.load(adapted.path, device="cpu", checkpoint="last")
    tokens, data = data_of(adapted)
    nats, scored = 0.0, 0
    for number in tokens.split.numbers("held_out"):
        messages = tokens.split.corpus.rows[number]
        ids, answers = model.chat_template.encode_answers(messages, model.tokenizer)
        with torch.no_grad():
            logits = model.network(torch.tensor([ids[:-1]]))[0]
        losses = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")[torch.tensor(answers[1:])]
        nats, scored = nats + losses.sum().item(), scored + len(losses)
        said = "".join(m["content"] for m in messages if m["role"] == "assistant")
        assert model.tokenizer.decode([i for i, own in zip(ids, answers, strict=True) if own]) == said
    last = [row for row in read_metrics(adapted.path / "metrics.jsonl") if row.get("whole")][-1]
    assert last["held_out_loss"] == pytest.approx(nats / scored, abs=1e-5)
    assert data.held_out_tokens_per_byte == scored / tokens.part("held_out").n_bytes


def test_new_tokens_are_trained_and_saved_with_adapters(base, adapted):
    """The rows of the markers start at the mean and move; every other row, and the base, stay as they were."""
    assert adapted.recipe.record.new_ids == (300, 301)
    assert not (adapted.path / "adapter").exists()
    before = pellucid.load(base, device="cpu").network
    with pytest.raises(RecipeError, match="trained rows for 2 new tokens"):
        pellucid.convert(adapted.path, adapted.path.parent / "adapter", to="adapter")
    checkpoint, _ = load_checkpoint(adapted.path)
    assert checkpoint is not None
    saved = checkpoint.weights
    after = pellucid.load(adapted.path, device="cpu", checkpoint="last").network
    for name in ("embed.token", "unembed"):
        old, new = before.get_submodule(name).weight, after.get_submodule(name).weight
        assert torch.equal(new[:300], old[:300])
        mean = old[:300].double().mean(0).float()
        assert saved[f"{name}.rows"].abs().max(dim=1).values.min() > 0
        assert torch.equal(new[300:], mean + saved[f"{name}.rows"])


def test_a_run_of_conversations_goes_to_transformers(adapted, tmp_path):
    """The template is in tokenizer_config.json, answers end where generation_config.json says, and both sides agree."""
    done = pellucid.convert(adapted.path, tmp_path / "exported", checkpoint="last")
    tokenizer = AutoTokenizer.from_pretrained(done.folder)
    messages = [{"role": "user", "content": "Say red cat 12"}]
    model = pellucid.load(adapted.path, device="cpu", checkpoint="last")
    ids = model.chat_template.encode(messages, model.tokenizer)
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
    config = json.loads((done.folder / "generation_config.json").read_text())
    assert config["eos_token_id"] == model.chat_template.end_ids(model.tokenizer)
    assert 301 in config["eos_token_id"]
    assert pellucid.load(done.folder, device="cpu").chat_template.source == CHATML
    theirs = AutoModelForCausalLM.from_pretrained(done.folder)
    expected = theirs.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    assert [p.token for p in model.reply(messages, max_tokens=8, temperature=0)] == expected


def test_conversations_are_recognised_and_samples_are_answers(conversations, tmp_path):
    fields = CHAT_FIELDS
    run = pellucid.train(conversations, out=tmp_path / "run", fields=fields, steps=4)
    assert run.recipe.train.objective == "chat"
    assert pellucid.load(run.path).chat_template == ChatTemplate()
    sample = next(row["sample"] for row in read_metrics(run.path / "metrics.jsonl") if row.get("sample"))
    assert sample.startswith(f"user: {run.recipe.train.sample_prompt}\nassistant: ")
    baselines = json.loads((run.path / "baselines.json").read_text())["predictors"]
    assert {"uniform", "unigram"} <= {one["name"] for one in baselines}


def test_a_model_keeps_its_own_template_and_tokens(base, conversations, tmp_path):
    folder = tmp_path / "with_template"
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    source += "{% if add_generation_prompt %}assistant: {% endif %}"
    (folder / "chat_template.jinja").write_text(source)
    run = pellucid.train(conversations, out=tmp_path / "run", from_model=folder, fields=FIELDS, steps=1)
    assert run.recipe.record.new_ids == ()
    assert pellucid.load(run.path).chat_template.source == source
    fields = FIELDS | {"text.chat_template": "chatml"}
    run = pellucid.train(conversations, out=tmp_path / "chatml", from_model=folder, fields=fields, steps=1)
    assert (run.recipe.record.new_ids, pellucid.load(run.path).chat_template.source) == ((300, 301), CHATML)


def test_a_resumed_run_reads_its_own_copy_of_the_template(conversations, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(CHATML)
    fields = QUIET | {"chat_template": str(file)}
    run = pellucid.train(conversations, out=tmp_path / "run", fields=fields, steps=2).path
    file.write_text("{{ messages[0].content }}")
    assert pellucid.train(out=run, resume=True, steps=3).step == 3
    file.unlink()
    assert pellucid.train(out=run, resume=True, steps=4).step == 4
    config = json.loads((run / "tokenizer_config.json").read_text())
    config["chat_template"] = CHATML.replace("'<|im_end|>' + '\n'", "'<|im_end|>' + '\n\n'")
    (run / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(RecipeError, match=r"\(the chat template changed\): put it back"):
        pellucid.train(out=run, resume=True, steps=5)


@pytest.fixture
def encoded(monkeypatch):
    """The number of conversations in each batch that is encoded."""
    from pellucid.text.tokens import conversations

    sizes, encode = [], conversations._encode_batch

    def counted(split, numbers, *given):
        sizes.append(len(numbers))
        return encode(split, numbers, *given)

    monkeypatch.setattr(conversations, "_encode_batch", counted)
    return sizes


def test_a_second_run_and_a_resumed_one_encode_nothing(conversations, tmp_path, encoded):
    run = pellucid.train(conversations, out=tmp_path / "run", fields=QUIET, steps=2)
    assert sum(encoded) == 40
    pellucid.train(out=run.path, resume=True, steps=3)
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(conversations.read_bytes())
    again = pellucid.train(moved, out=tmp_path / "again", fields=QUIET, steps=2)
    assert sum(encoded) == 40
    assert json.loads((again.path / "data.json").read_text())["sources"][0]["path"] == "moved.jsonl"
    pellucid.train(conversations, out=tmp_path / "other", fields=QUIET | {"seed": 1}, steps=2)
    assert sum(encoded) == 80


def prepare(path, cache, template=CHATML, held_out=0.3, tokenizer=None, **variables):
    split = split_conversations(read_conversations([str(path)]), held_out)
    tokenizer = tokenizer or ByteTokenizer().with_special(*CHATML_MARKERS)
    return prepare_conversations(split, tokenizer, ChatTemplate(template, variables), cache)


def content_of(tokens):
    """A copy: the files of the tokens may change."""
    arrays = ("ids", "answers", "starts")
    return tokens.manifest, [[getattr(part, name).tolist() for name in arrays] for part in tokens.parts.values()]


def test_stored_conversations_are_those_of_the_template(conversations, tmp_path, encoded):
    tokenizer, template = ByteTokenizer().with_special(*CHATML_MARKERS), ChatTemplate(CHATML)
    first, again = prepare(conversations, tmp_path), prepare(conversations, tmp_path)
    assert sum(encoded) == 40
    assert content_of(first) == content_of(again)
    for name, part in again.parts.items():
        for k, number in enumerate(again.split.numbers(name)):
            ids, answers = template.encode_answers(again.split.corpus.rows[number], tokenizer)
            own = slice(part.starts[k], part.starts[k] + part.lengths[k])
            assert (part.ids[own].tolist(), part.answers[own].tolist()) == (ids, answers)
    assert again.notes == ()


def test_another_template_tokenizer_split_or_row_is_encoded_anew(conversations, tmp_path, encoded):
    prepare(conversations, tmp_path)
    changed = tmp_path / "changed.jsonl"
    changed.write_text(conversations.read_text().replace("Say", "SAY", 1))
    spaced = CHATML.replace("'<|im_end|>' + '\n'", "'<|im_end|>' + '\n\n'")
    assert spaced != CHATML
    others = (
        lambda: prepare(conversations, tmp_path, spaced),
        lambda: prepare(conversations, tmp_path, bos_token="<s>"),
        lambda: prepare(conversations, tmp_path, held_out=0.5),
        lambda: prepare(conversations, tmp_path, tokenizer=ByteTokenizer().with_special(*CHATML_MARKERS, "<|new|>")),
        lambda: prepare(changed, tmp_path),
    )
    for n, other in enumerate(others, 2):
        tokens = other()
        assert sum(encoded) == 40 * n
        assert content_of(other()) == content_of(tokens)
        assert sum(encoded) == 40 * n


@pytest.mark.parametrize(
    "name", ["train-00000.bin", "train.documents.npy", "held_out.answers.npy", "held_out-00000.bin", "manifest.json"]
)
def test_damaged_conversations_are_encoded_again_and_said(name, conversations, tmp_path, encoded):
    content = content_of(prepare(conversations, tmp_path))
    (folder,) = tmp_path.glob("tokens-*")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for n, damaged in enumerate((before[name][:-9], before[name][:-1] + bytes([before[name][-1] ^ 1]), None), 2):
        if damaged is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(damaged)
        again = prepare(conversations, tmp_path)
        assert sum(encoded) == 40 * n
        (note,) = again.notes
        assert note.startswith("prepared tokens were damaged and have been encoded again")
        assert name in note
        assert content_of(again) == content
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert prepare(conversations, tmp_path).notes == ()


def test_a_run_says_that_its_conversations_were_damaged(conversations, tmp_path, capsys):
    run = pellucid.train(conversations, out=tmp_path / "run", fields=QUIET, steps=2).path
    (answers,) = (tmp_path / "cache").glob("tokens-*/train.answers.npy")
    answers.write_bytes(answers.read_bytes()[:-1])
    pellucid.train(out=run, resume=True, steps=3, show=True)
    assert "prepared tokens were damaged and have been encoded again" in "".join(capsys.readouterr())


def test_interrupted_encoding_leaves_nothing_behind(conversations, tmp_path, monkeypatch):
    def stop(split, name, *given):
        if name == "held_out":
            raise KeyboardInterrupt
        return write(split, name, *given)

    from pellucid.text.tokens import conversations as stored

    write = stored._write_part_tokens
    monkeypatch.setattr(stored, "_write_part_tokens", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(conversations, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_conversation_of_no_ids_keeps_its_place(conversations, tmp_path):
    """A template may write nothing of a conversation."""
    silent = "{% if '7' not in messages[0]['content'] %}" + CHATML + "{% endif %}"
    for _ in range(2):
        tokens = prepare(conversations, tmp_path, silent)
        for name, part in tokens.parts.items():
            rows = [tokens.split.corpus.rows[number] for number in tokens.split.numbers(name)]
            assert [n == 0 for n in part.lengths] == ["7" in row[0]["content"] for row in rows]
            assert tokens.packed(name, 32).n_left_out >= sum(part.lengths == 0)
    assert any(0 in part.lengths for part in tokens.parts.values())


def test_the_assistant_may_speak_first(tmp_path):
    """All of these begin alike, so what is held out is chosen by whole conversations; a resumed run does the same."""
    path = tmp_path / "chats.jsonl"
    said = [[("assistant", f"Name {i}?"), ("user", f"{i + 1}"), ("assistant", "Thanks.")] for i in range(20)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in one]} for one in said]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = split_conversations(read_conversations([str(path)]))
    assert split.to_dict()["rule"] == "conversations"
    assert 0 < split.held.sum() < len(rows)
    run = pellucid.train(path, out=tmp_path / "run", fields=QUIET, steps=2).path
    assert pellucid.train(out=run, resume=True, steps=3).step == 3
    path.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[0]) + "\n")
    with pytest.raises(ConversationsError, match="two different conversations are needed"):
        split_conversations(read_conversations([str(path)]))


def test_other_conversations_are_held_out_by_how_they_begin(conversations):
    """The rule of earlier runs keeps its name, by which they are resumed."""
    assert split_conversations(read_conversations([str(conversations)])).to_dict()["rule"] == "openings"


def test_answers_of_weight_0_are_read_and_not_learned(tmp_path):
    """As in OpenAI's files for fine-tuning."""
    path, said = tmp_path / "chats.jsonl", ("user", "assistant", "user", "assistant")
    with path.open("w") as file:
        for i in range(4):
            texts = [(f"a {i}", None), ("bad", 0), ("b", None), ("good", i % 2 or None)]
            messages = [
                {"role": role, "content": text, "weight": w} for role, (text, w) in zip(said, texts, strict=True)
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    split = split_conversations(read_conversations([str(path)]), 0.3)
    tokenizer = ByteTokenizer().with_special(*CHATML_MARKERS)
    for name, part in prepare_conversations(split, tokenizer, ChatTemplate(), tmp_path).parts.items():
        n = len(split.numbers(name))
        assert tokenizer.decode(part.ids[part.answers].tolist()) == "good" * n
        assert part.n_bytes == len("good") * n
        assert b"bad" in tokenizer.decode(part.ids.tolist()).encode()


def test_rows_of_sharegpt_and_compressed_files_are_conversations(tmp_path):
    turns = [("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello")]
    row = {"id": 1, "conversations": [{"from": who, "value": text} for who, text in turns]}
    path = tmp_path / "chats.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    assert holds_conversations([str(path)])
    (messages,) = read_conversations([str(path)]).rows
    roles = ("system", "user", "assistant")
    assert messages == [{"role": role, "content": text} for role, (_, text) in zip(roles, turns, strict=True)]


WRONG = {
    '{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}': "message 1 has the weight 0.5, expected 1",
    '{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}': "no message of the assistant, expected",
    '{"conversations": [{"from": "function_call", "value": "a"}]}': "a turn from 'function_call', expected one of",
    '{"conversations": [{"from": "gpt"}]}': r"message 1 \(assistant\) has no content",
    '{"messages": [{"role": "user", "content": "a"}]}': "no message of the assistant",
    '{"messages": "a"}': "no field 'messages'",
    '{"messages": [{"role": "assistant"}]}': r"message 1 \(assistant\) has no content",
    "[1]": "list, expected an object with the field messages",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_no_conversation_is_named(line, tmp_path):
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps(good)}\n{line}\n")
    with pytest.raises(ConversationsError, match=rf"chats.jsonl:2: {WRONG[line]}"):
        pellucid.train(path, out=tmp_path / "run", fields=QUIET | {"objective": "chat"}, steps=1)


def test_what_does_not_go_with_conversations_is_refused(conversations, tmp_path):
    fields = QUIET | {"objective": "next-token", "chat_template": "chatml"}
    with pytest.raises(RecipeError, match=r"text.chat_template = chatml goes with train.objective = chat"):
        pellucid.train(conversations, out=tmp_path / "run", fields=fields, steps=1)
    with pytest.raises(RecipeError, match=r"text.drop_duplicates = yes does not go with conversations"):
        pellucid.train(conversations, out=tmp_path / "run", fields=QUIET | {"drop_duplicates": "yes"}, steps=1)
    with pytest.raises(RecipeError, match=r"has an answer within model.n_ctx = 8 tokens"):
        pellucid.train(conversations, out=tmp_path / "run", fields=QUIET | {"n_ctx": 8}, steps=1)
    with pytest.raises(RecipeError, match="there is no such chat template"):
        pellucid.train(conversations, out=tmp_path / "run", fields=QUIET | {"chat_template": "x.jinja"}, steps=1)


def test_a_model_without_a_template_says_what_to_do(base):
    with pytest.raises(ChatError, match=r"has no chat template, .*pellucid train CHATS.jsonl --from MODEL"):
        pellucid.load(base, device="cpu").reply([{"role": "user", "content": "a"}])


def test_an_epoch_of_conversations_is_every_row_once(conversations, tmp_path):
    """Conversations are longer than this context: what is cut off is no part of an epoch."""
    fields = QUIET | {"n_ctx": 48, "batch": 2, "accumulate": 1}
    run = pellucid.train(conversations, out=tmp_path / "run", fields=fields, epochs=2)
    tokens, data = data_of(run)
    assert data.packed["train"].n_cut > 0
    assert data.packed["train"].n_targets < len(tokens.targets("train"))
    assert run.step == round(2 * len(data.packed["train"].rows) / 2)
