"""Read tables of Apache Arrow: Parquet files, and Hugging Face data sets on disk. One column holds the text."""

import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from pellucid.text.read.chunks import CHUNK_BYTES, DocumentError, TextChunk, piece_of_text
from pellucid.text.read.decompress import Origin, import_data_extra

#: the default name of the field or column that holds the text
FIELD = "text"
#: the fields that hold the turns of a conversation: ours, and that of ShareGPT
TURNS = ("messages", "conversations")
#: how many rows are in memory at once
ROWS_TOGETHER = 256


class ChosenField(NamedTuple):
    """The field or column that was read as the text, "" where rows are strings, and the others that may hold text.

    `divisions` is how often documents were divided at `ReadOptions.split_at`, and `front_matter` are the bytes left out
    before the text. `main_missing` is whether a page was read as a whole because no part of it is clearly its main
    text.
    """

    name: str
    others: tuple[str, ...] = ()
    divisions: int = 0
    front_matter: int = 0
    main_missing: bool = False


#: the documents of a file, each an iterator of chunks; what is returned behind the last says which field was read
FileDocuments = Generator[Iterator[TextChunk], None, ChosenField | None]


def choose_field(of_text: Sequence[str], every: Sequence[str], name: str, asked: str = "", what: str = "field") -> str:
    """Choose the field to read: the requested one, else `text`, else the only one that holds text.

    Raises DocumentError, listing the fields, if the requested one is missing or there is more than one choice.
    """
    if asked and asked not in every:
        raise DocumentError(
            f"{name} has no {what} {asked!r}; the {what}s are {first_column_names(every)}: choose with --field"
        )
    if asked or FIELD in of_text or len(of_text) == 1:
        return asked or (FIELD if FIELD in of_text else of_text[0])
    which = (
        f"several hold text, {first_column_names(of_text)}"
        if of_text
        else f"none of {first_column_names(every)} holds text"
    )
    raise DocumentError(f"{name}: {which}: choose a {what} with --field")


def refuse_conversations(lists: Sequence[str], of_text: Sequence[str], name: str, what: str = "field") -> None:
    """Raise DocumentError where one of the fields that hold `lists` is the turns of a conversation, and no field is
    called `text`: the only text beside them would often be an id.
    """
    if FIELD not in of_text and (turns := [field for field in TURNS if field in lists]):
        raise DocumentError(
            f"{name}: the {what} {turns[0]!r} holds a conversation, and text is to be read: give --objective chat, "
            "which learns the answers in .jsonl files, or choose a field of text with --field NAME"
        )


def first_column_names(names: Iterable[str]) -> str:
    """The first twenty names, for an error message."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "") or "none"


def read_parquet(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Parquet: each row's text in one column is a document."""
    parquet = import_data_extra("pyarrow.parquet", origin.name)
    with _errors(origin), seekable(file, origin) as table:
        opened = parquet.ParquetFile(table, buffer_size=CHUNK_BYTES, pre_buffer=False)
        column = _column(opened.schema_arrow, origin)
        for batch in opened.iter_batches(ROWS_TOGETHER, columns=[column.name], use_threads=False):
            yield from _rows(batch.column(0))
        return column


def read_arrow(file: BinaryIO, origin: Origin) -> FileDocuments:
    """Arrow's stream or file format, as `datasets` saves it: each row's text in one column is a document."""
    ipc = import_data_extra("pyarrow.ipc", origin.name)
    with _errors(origin), seekable(file, origin) as table:
        is_file = table.read(6) == b"ARROW1"
        table.seek(0)
        opened = ipc.open_file(table) if is_file else ipc.open_stream(table)
        column = _column(opened.schema, origin)
        batches = (opened.get_batch(i) for i in range(opened.num_record_batches)) if is_file else opened
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_TOGETHER):
                yield from _rows(batch.column(column.name).slice(start, ROWS_TOGETHER))
        return column


def _rows(column: Any) -> Iterator[Iterator[TextChunk]]:
    for text in column.to_pylist():
        yield iter([piece_of_text(text or "")])


def _column(schema: Any, origin: Origin) -> ChosenField:
    types = import_data_extra("pyarrow", origin.name).types

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        view = getattr(types, "is_string_view", lambda _: False)
        return types.is_string(kind) or types.is_large_string(kind) or view(kind)

    of_text = [field.name for field in schema if is_text(field.type)]
    if not origin.field:
        lists = [f for f in schema if types.is_list(f.type) or types.is_large_list(f.type)]
        refuse_conversations(
            [f.name for f in lists if types.is_struct(f.type.value_type)], of_text, origin.name, "column"
        )
    column = choose_field(of_text, schema.names, origin.name, origin.field, "column")
    if schema.names.count(column) > 1:
        raise DocumentError(f"{origin.name} has {schema.names.count(column)} columns {column!r}: rename one of them")
    if column not in of_text:
        raise DocumentError(
            f"{origin.name}: column {column!r} holds {schema.field(column).type}, expected text; "
            f"columns of text are {', '.join(of_text) or 'none'}"
        )
    return ChosenField(column, tuple(name for name in of_text if name != column))


@contextmanager
def _errors(origin: Origin) -> Iterator[None]:
    """Turn pyarrow's errors for a damaged file into DocumentError."""
    arrow = import_data_extra("pyarrow", origin.name)
    try:
        yield
    except (arrow.lib.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # not pyarrow's, which calls a damaged stream an OSError too
            raise
        said = str(error).splitlines()[0]
        raise DocumentError(f"{origin.name} is damaged or not of its format ({said}): fetch it again") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"{origin.name} holds a text that is not UTF-8 ({error.reason})") from None


@contextmanager
def seekable(file: BinaryIO, origin: Origin) -> Iterator[BinaryIO]:
    """The file itself, or the content of a compressed file in a temporary file: Arrow's readers seek."""
    if not origin.packed:
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        while chunk := file.read(CHUNK_BYTES):
            copy.write(chunk)
        copy.seek(0)
        yield cast(BinaryIO, copy)
