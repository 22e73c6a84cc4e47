"""pellucid chat: a conversation by lines, its commands, an answer that is stopped, and what is refused."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from pellucid import cli
from pellucid.architecture import Architecture, Attention
from pellucid.cli.chat import HELP, Conversation, answer_lines, lines_of
from pellucid.generate.scoring import score_tokens
from pellucid.language_model import LanguageModel
from pellucid.model import Transformer
from pellucid.model.weights import initialise
from pellucid.text.chat_template import CHATML_MARKERS, ChatTemplate
from pellucid.text.tokenizers.symbols import ByteTokenizer


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A random network over bytes, whose answers run until they are cut."""
    tokenizer = ByteTokenizer().with_special(*CHATML_MARKERS)
    a = Architecture(
        n_vocab=tokenizer.n_vocab, n_ctx=128, d_model=16, n_layers=1, attention=Attention(n_heads=2), unembed="untied"
    )
    network = initialise(Transformer(a), 0).eval()
    with torch.no_grad():
        network.unembed.weight[256:].zero_()  # the special tokens are seldom drawn
        network.unembed.weight.mul_(20)
    return LanguageModel(network, tokenizer, {}, ChatTemplate())


def talk(model, *lines, **options):
    out = io.StringIO()
    options = {"options": {"max_tokens": 6, "temperature": 0}} | options
    conversation = Conversation(model, out=out, **options)
    answer_lines(conversation, iter(f"{line}\n" for line in lines))
    return conversation, out.getvalue()


def test_answers_are_those_of_the_model_and_the_history_grows(model):
    conversation, said = talk(model, "hello", "", "//help me", "/quit", "never read", system="Be brief.")
    system, first, answer, second, last = conversation.messages
    assert (system["role"], first["content"], second["content"]) == ("system", "hello", "/help me")
    expected = "".join(p.text for p in model.reply([system, first], max_tokens=6, temperature=0))
    assert answer == {"role": "assistant", "content": expected}
    again = "".join(p.text for p in model.reply([system, first, answer, second], max_tokens=6, temperature=0))
    assert last["content"] == again
    assert len(said.splitlines()) >= 2


def test_commands(model):
    conversation, said = talk(model, "/help", "/regenerate", "/nonsense", "hi", "/surprisal", "/regenerate", "/new")
    assert HELP in said
    assert "there is no message to answer again" in said
    assert "there is no command /nonsense: /help lists them" in said
    assert conversation.messages == []
    with_surprisal = said.partition("surprisal is shown, in nats\n")[2]
    pieces = list(model.reply([{"role": "user", "content": "hi"}], max_tokens=6, temperature=0))
    assert f"[{pieces[0].surprisal:.2f}]" in with_surprisal
    assert sum(p.surprisal for p in pieces) == pytest.approx(
        sum(float(number) for number in re.findall(r"\[(?:end )?([0-9.]+)\]", with_surprisal)), abs=0.04
    )


def test_surprisal_is_that_of_score_where_a_network_has_more_rows_than_ids():
    tokenizer, messages = ByteTokenizer().with_special(*CHATML_MARKERS), [{"role": "user", "content": "hi"}]
    a = Architecture(n_vocab=tokenizer.n_vocab + 60, n_ctx=128, d_model=16, n_layers=1, attention=Attention(n_heads=2))
    padded = LanguageModel(initialise(Transformer(a), 0).eval(), tokenizer, {}, ChatTemplate())
    pieces = list(padded.reply(messages, max_tokens=6, temperature=0))
    prompt = ChatTemplate().encode(messages, tokenizer)
    log_probs = score_tokens(padded.network, [*prompt, *(p.token for p in pieces)], first=len(prompt))
    assert [p.surprisal for p in pieces] == pytest.approx(-log_probs, abs=1e-4)


def test_a_seed_gives_the_conversation_again_and_regenerate_another_answer(model):
    options = {"options": {"max_tokens": 8, "temperature": 1.0}, "seed": 7}
    first, said = talk(model, "hi", **options)
    assert talk(model, "hi", **options)[1] == said
    again, _ = talk(model, "hi", "/regenerate", **options)
    assert len(again.messages) == len(first.messages) == 2
    assert again.messages[-1] != first.messages[-1]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(model, monkeypatch):
    real = LanguageModel.reply

    def interrupted(self, messages, **options):
        for n, piece in enumerate(real(self, messages, **options)):
            if n == 3:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(LanguageModel, "reply", interrupted)
    conversation, said = talk(model, "hi")
    monkeypatch.setattr(LanguageModel, "reply", real)
    assert said.endswith(" [stopped]\n")
    full = list(model.reply([{"role": "user", "content": "hi"}], max_tokens=6, temperature=0))
    assert conversation.messages[-1]["content"] == "".join(p.text for p in full[:3])
    conversation.take("/regenerate")
    assert conversation.messages[-1]["content"] == "".join(p.text for p in full)


def test_earlier_messages_make_room_and_what_never_fits_is_said(model):
    conversation, said = talk(model, "a" * 50, "b" * 50, "c" * 200, "d", system="s")
    assert "(no longer in the context of 128 tokens: the first 2 messages)" in said
    assert "this message and the instructions together have 230 tokens, and the context has 128" in said
    assert "the first 4 messages" not in said  # nothing makes room for the message of 200 bytes
    assert conversation.messages[0]["content"] == "s"
    assert [message["content"][0] for message in conversation.messages[1::2]] == ["a", "b", "d"]


def test_a_line_that_is_not_utf8_is_left_out_and_the_next_ones_are_read(model):
    out, lines = io.StringIO(), io.TextIOWrapper(io.BytesIO(b"hi\n  caf\xe9\nyes\n"), encoding="utf-8")
    conversation = Conversation(model, out=out, options={"max_tokens": 6, "temperature": 0})
    answer_lines(conversation, lines_of(lines, out))
    assert [message["content"] for message in conversation.messages[::2]] == ["hi", "yes"]
    assert "this line is not UTF-8 from its character 6 on and is left out" in out.getvalue()


def test_lines_of_a_file_are_messages():
    assert list(lines_of(io.StringIO("a\nb\n"), io.StringIO())) == ["a\n", "b\n"]


@pytest.fixture
def folder(model, tmp_path):
    return model.save(tmp_path / "model")


def test_a_saved_model_has_its_template_and_is_talked_with(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert cli.main(["chat", str(folder), "--temperature", "0", "--max-tokens", "4", "--surprisal"]) == 0
    assert capsys.readouterr().out.count("[") >= 1


def test_instructions_that_leave_no_room_are_refused_at_the_start(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert cli.main(["chat", str(folder), "--system", "x" * 128]) == 2
    said, error = capsys.readouterr()
    assert not said
    assert "shorten the instructions" in error


def test_answers_are_computed_with_packed_weights(folder, model, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert cli.main(["chat", str(folder), "--temperature", "0", "--max-tokens", "20", "--weights", "int4"]) == 0
    said, error = capsys.readouterr()
    assert "weights: int4, " in error
    options = {"max_tokens": 20, "temperature": 0}
    assert said == talk(model, "hi", options=options | {"weights": "int4"})[1]
    assert said != talk(model, "hi", options=options)[1]


def test_a_model_without_a_template_is_told_what_to_do(folder, capsys):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    assert cli.main(["chat", str(folder)]) == 2
    assert "has no chat template" in capsys.readouterr().err


@pytest.mark.slow
def test_in_a_terminal_ctrl_c_stops_and_ctrl_d_ends(folder):
    """A real terminal: a prompt, an answer, Ctrl-C at the prompt, and the end."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "pellucid", "chat", str(folder), "--max-tokens", "5", "--seed", "1"]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True, preexec_fn=heed_ctrl_c
    )
    os.close(follower)
    try:
        read_until(leader, rb"seed 1\s+> ")
        os.write(leader, b"hello\n")
        read_until(leader, rb"hello\s.*\n> ")
        # a signal that comes just before Python begins to wait for a key is heeded when another one comes
        read_until(leader, rb"Ctrl-D ends\)\s+> ", again=lambda: process.send_signal(signal.SIGINT))
        os.write(leader, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def heed_ctrl_c() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_until(leader: int, expected: bytes, again: Callable[[], None] = lambda: None) -> None:
    """Read what the terminal shows up to this pattern; `again` is called first, and whenever it is silent for long."""
    shown, end = b"", time.monotonic() + 60
    again()
    while not re.search(expected, shown, re.DOTALL) and time.monotonic() < end:
        if select.select([leader], [], [], 5)[0]:
            shown += os.read(leader, 4096)
        else:
            again()
    assert re.search(expected, shown, re.DOTALL), shown
