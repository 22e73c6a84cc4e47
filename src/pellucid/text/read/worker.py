"""A worker process that scans files until its input ends; `scan_files` starts it."""

from pellucid.text.read.scan_files import pack_scanned, scan_file, unpack_file
from pellucid.text.workers import answer_all


def scanned_message(content: bytes) -> bytes:
    """The answer to one message."""
    reading, file = unpack_file(content)
    return pack_scanned(scan_file(file, reading, lambda n_bytes: None))


if __name__ == "__main__":
    answer_all(scanned_message)
