"""Text larger than memory: what reading and encoding hold does not grow with it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pellucid.text import learn_tokenizer

#: reads and encodes a folder with two workers, and says how much anonymous memory that took beyond the imports
SCRIPT = """
import json, sys, threading, time
from pathlib import Path
from pellucid.text import load_tokenizer, prepare_tokens, read_corpus, split_corpus

def anonymous():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])

peak, done = [anonymous()], threading.Event()
before = peak[0]
def look():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)
looking = threading.Thread(target=look)
looking.start()
tokens = prepare_tokens(split_corpus(read_corpus(sys.argv[1])), load_tokenizer(sys.argv[2]), sys.argv[3], workers=2)
done.set()
looking.join()
print(json.dumps({"grown": peak[0] - before, "tokens": len(tokens.part("train"))}))
"""


def write(folder, shakespeare, n_bytes):
    """Half in one long file, half in JSON lines of about 1,500 characters."""
    folder.mkdir()
    with (folder / "long.txt").open("w") as file:
        for _ in range(n_bytes // 2 // len(shakespeare)):
            file.write(shakespeare)
    with (folder / "rows.jsonl").open("w") as file:
        for i in range(n_bytes // 2 // 1500):
            start = i * 1237 % (len(shakespeare) - 1500)
            file.write(json.dumps({"text": f"{i} {shakespeare[start : start + 1500]}"}) + "\n")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(shakespeare, tmp_path):
    learn_tokenizer("bpe", [shakespeare], 1024).save(tmp_path / "tokenizer")
    grown = {}
    for megabytes in (12, 60):
        write(tmp_path / f"text-{megabytes}", shakespeare, megabytes * 1_000_000)
        paths = [str(tmp_path / name) for name in (f"text-{megabytes}", "tokenizer", f"cache-{megabytes}")]
        said = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, check=True).stdout
        grown[megabytes] = json.loads(said)["grown"]
    assert grown[60] < 120e6, grown
    assert grown[60] - grown[12] < 25e6, grown


def made_up(n_bytes):
    """Texts of 200,000 words of 3 to 12 letters, the rank-th as frequent as 1 / rank (Zipf's law)."""
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    often = 1 / np.arange(2, 28)
    spelled = ("".join(draw.choice(letters, n, p=often / often.sum())) for n in draw.integers(3, 13, 200_000))
    words, frequency = np.array(list(spelled)), 1 / np.arange(1, 200_001)
    size = 0
    while size < n_bytes:
        yield (text := " ".join(draw.choice(words, 100_000, p=frequency / frequency.sum())))
        size += len(text)


@pytest.mark.slow
@pytest.mark.item("S4-tok-b")
def test_a_vocabulary_of_gpt2s_size_is_learned_from_100_megabytes():
    made = learn_tokenizer("bpe", made_up(100_000_000), 50_257)
    assert made.n_vocab == 50_257
    text = next(made_up(1))
    assert made.decode(made.encode(text)) == text
    assert len(made.encode(text)) < 0.3 * len(text)
