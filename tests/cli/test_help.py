"""The help pages: groups, placeholders, examples that parse, every field of a recipe, completion, near misses."""

import ast
import contextlib
import dataclasses
import functools
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pellucid
from pellucid import cli
from pellucid.cli import examples_of
from pellucid.cli.command_groups import COMMAND_GROUPS
from pellucid.cli.completion import completion
from pellucid.cli.fields import fitted, sections
from pellucid.field_docs import field_docs
from pellucid.predictors.recipe import DESCRIPTION_OF_KIND, predictor_fields
from pellucid.training.recipe import OPTION_CLASSES, TextOptions, recipe_fields

SOURCE = Path(pellucid.__file__).parent
ROOT = SOURCE.parent.parent
COMMANDS = {(name,): function for name, function in cli.COMMANDS.items()}
COMMANDS |= {(group, name): run for group, (commands, _) in COMMAND_GROUPS.items() for name, run in commands.items()}
ALL = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@pytest.fixture
def page(command, capsys, monkeypatch):
    """The help of a command in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command, "--help"]) == 0
    return capsys.readouterr().out


def options_in(page):
    """Every option of a help page, with its placeholder."""
    return re.findall(r"^[^-\w]*(?:-\w \w+, )?(--[a-z][a-z-]*)(?: ([A-Z][\w|/=]*))?", page, re.MULTILINE)


@ALL
def test_a_help_page_fits_the_terminal_and_ends_with_two_examples(command, page):
    assert max(map(len, page.splitlines())) <= 80
    assert "\u256d\u2500 options" in page
    assert not re.search("^\u2502 +\u2502$", page, re.MULTILINE)  # no row of a box is empty
    _, _, below = page.partition("\nexamples:\n")
    examples = below.splitlines()
    assert len(examples) == 2
    assert all(e.startswith(f"  pellucid {' '.join(command)} ") for e in examples)


@ALL
def test_placeholders_mean_something(command, page):
    """No types of Python, no None, and a sentence for every option."""
    assert not re.search(r"None|\bSTR\b|\bINT\b|\bFLOAT\b|\bPATH\b|\bBOOL\b|True|False", page)
    assert not re.search(r"default: *\)", page)
    text = re.sub(r"[\u2500-\u257f]", "", page)
    for option, placeholder in options_in(page):
        assert re.search(rf"{option} ?{re.escape(placeholder)}\s+[A-Z][a-z]+ \S+", text), option


@ALL
def test_examples_are_commands(command, monkeypatch):
    """Every example is parsed by the command itself; its paths need not exist for that."""
    parsed = []

    def only_parsed(function):
        return functools.wraps(function)(lambda *given, **named: lambda: parsed.append(named) or 0)

    monkeypatch.setattr(cli, "bind_arguments", only_parsed)
    for example in examples_of(COMMANDS[command]):
        program, *words = shlex.split(re.sub(r" [<>] .*", "", example))
        assert program == "pellucid"
        assert cli.main(words) == 0
    assert len(parsed) == 2


def test_options_are_in_groups(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["train", "--help"])
    out = capsys.readouterr().out
    for group, option in (("input", "tokenizer"), ("model", "preset"), ("training", "minutes"), ("output", "out")):
        box = out.partition(f"{group} options")[2]
        assert f"--{option} " in box
        assert box.index(f"--{option} ") < box.find(" options", 1) % len(box)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["trian"], "pellucid train"),
        (["tokenizer", "shwo"], "pellucid tokenizer show"),
        (["train", "x", "--preset", "gpt22"], "'gpt2'"),
        (["plan", "smal"], "'small'"),
        (["train", "x", "--stepz", "3"], "--steps N"),
    ],
)
def test_what_was_meant_is_named(words, near, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x").write_text("text")
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert near in error
    assert re.search("did you mean|Perhaps you meant", error)


# Fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transformer", *DESCRIPTION_OF_KIND])
def test_every_field_is_explained(kind, capsys, monkeypatch):
    """All names that --set takes, and no others; each with its meaning, the values it takes and its default."""
    monkeypatch.setenv("COLUMNS", "80")
    expected = recipe_fields() if kind == "transformer" else predictor_fields(kind)
    found = [field for section in sections(kind) for field in section.fields]
    # model.dropout sets four rates at once; each of them is listed
    assert sorted(f.name for f in found) == sorted(name for name in expected if name != "model.dropout")
    values = {field.name: field.values for field in found}
    if kind == "transformer":
        assert "path" in values["text.held_out_files"]
        assert "1.0" in values["model.positions.long_factors"]
    for field in found:
        assert len(field.meaning.split()) >= 2, field.name
        assert not field.meaning.startswith("#")
        assert field.values
    assert cli.main(["train", "--help-fields", "--predictor", kind]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {field.name}" in out for field in found)
    assert max(map(len, out.splitlines())) <= 80


def test_a_field_is_documented_by_the_docstring_below_it():
    @dataclasses.dataclass
    class Choices:
        """A table."""

        below: int = 1
        """two lines
        below
        """
        # a comment, which is of no field
        nothing: float = 0.5

    @dataclasses.dataclass
    class MoreChoices(Choices):
        last: str = ""
        """the last line of a class"""

    assert field_docs(Choices) == {"below": "two lines\nbelow", "nothing": ""}
    assert field_docs(MoreChoices) == {"below": "two lines\nbelow", "nothing": "", "last": "the last line of a class"}
    assert field_docs(TextOptions).keys() == {f.name for f in dataclasses.fields(TextOptions)}


def test_rows_of_a_table_stay_rows():
    text = "A sentence that is\nin two lines.\n\nword   its formula x = y + z and more of it\nother  the same"
    assert fitted(text, 30).splitlines() == [
        "A sentence that is in two",
        "lines.",
        "",
        "word   its formula x = y + z",
        "       and more of it",
        "other  the same",
    ]


def test_choices_show_their_defaults(capsys):
    assert cli.main(["train", "--help-fields"]) == 0
    out = capsys.readouterr().out
    assert "  train.schedule = wsd   (wsd | cosine | linear | constant)" in out
    assert f"  text.held_out = {OPTION_CLASSES['text']().held_out}   (number)" in out


# Completion -------------------------------------------------------------------------------------


def completed(script, line):
    """What bash offers for the last word of a line."""
    ask = f"""{script}
words=({line}); COMP_WORDS=("${{words[@]}}"); COMP_CWORD=$(( ${{#words[@]}} - 1 ))
COMP_LINE="${{words[*]}}"; COMP_POINT=${{#COMP_LINE}}
function=$(complete -p pellucid | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" pellucid "${{words[COMP_CWORD]}}" "${{words[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return {word.strip() for word in done.stdout.splitlines()}


def test_bash_completes_commands_and_options(capsys):
    assert completion("bash") == 0
    script = capsys.readouterr().out
    assert {"train", "tokenizer", "completion"} <= completed(script, "pellucid ''")
    assert completed(script, "pellucid tra") == {"train"}
    assert "--top-k" in completed(script, "pellucid generate runs/x --top")
    assert {"encode", "decode"} <= completed(script, "pellucid tokenizer ''")


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef pellucid"), ("fish", "#")])
def test_other_shells_have_a_script(shell, begins, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.lstrip().startswith(begins)
    assert "inside-documents" in script
    assert "encode" in script


def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err


# Options in messages ----------------------------------------------------------------------------


def texts_of(path):
    """Every string of a module with its line, f-strings among them; docstrings and regular expressions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.fixture(scope="module")
def known():
    """Every option that some command has."""
    found = {"--help", "--version"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        for command in COMMANDS:
            with contextlib.redirect_stdout(io.StringIO()) as page:
                cli.main([*command, "--help"])
            found |= {option for option, _ in options_in(page.getvalue())}
    assert {"--from", "--set", "--no-stream", "--json", "--out", "--kind"} <= found
    return found


def test_messages_name_options_that_exist(known):
    """No message or docstring of the package speaks of an option that no command has."""
    # of tyro, which makes the completion, of make demo, and of torchrun
    others = {"--tyro-print-completion", "--minutes", "--fresh"}
    others |= {"--standalone", "--nproc-per-node", "--shutdown-timeout", "--module"}
    unknown = [
        f"{path.relative_to(SOURCE)}:{line}: {option}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in texts_of(path)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
        if option not in known | others
    ]
    assert not unknown


def test_messages_name_fields_that_exist():
    """What is said of train.batch or text.field can be set by that name."""
    known = {
        *recipe_fields(),
        *(field for kind in DESCRIPTION_OF_KIND for field in predictor_fields(kind)),
        "train.epochs",
    }
    unknown = [
        f"{path.relative_to(SOURCE)}:{line}: {field}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in texts_of(path)
        for field in re.findall(r"(?<![\w./])(?:train|text|adapt|parallel)\.[a-z_]+\b(?![(.])", text)
        if field not in known
    ]
    assert not unknown


#: commands on the pages that are not ours
OTHER_PROGRAMS = ("lm_eval ", "vllm ", "torchrun ", "srun ", "#SBATCH ", "pip ", "uv ")


def test_pages_name_options_that_exist(known):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    unknown = [
        f"{page.name}: {option}"
        for page in pages
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        if "benchmarks" not in line and not line.lstrip("`").lstrip().startswith(OTHER_PROGRAMS)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)
        if option not in known
    ]
    assert not unknown


@pytest.mark.parametrize(
    ("pages", "heavy"),
    [
        ([[*command, "--help"] for command in COMMANDS] + [["trian"], [], ["completion", "bash"]], "torch numpy rich"),
        ([["train", "--help-fields"]], "torch"),
    ],
)
def test_what_is_looked_up_often_is_answered_at_once(pages, heavy):
    script = f"import sys, pellucid.cli as c\nfor words in {pages!r}: c.main(words)\n"
    script += f"sys.exit(' '.join({set(heavy.split())!r} & {{*sys.modules}}) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
