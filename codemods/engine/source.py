"""Bytes ↔ text, so that what is not edited keeps its bytes."""

from __future__ import annotations

import codecs
import io
import tokenize
from dataclasses import dataclass

from codemods.engine.tree import UnparsableError


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file's text was written: its codec and whether a byte order mark stood in front."""

    codec: str = "utf-8"
    bom: bool = False

    def encode(self, text: str) -> bytes:
        """The file's bytes for `text`.

        Raises:
            UnicodeEncodeError: `text` holds a character that the codec does not have.
        """
        data = text.encode(self.codec)
        return codecs.BOM_UTF8 + data if self.bom else data


def decode(data: bytes, python: bool) -> tuple[str, Encoding]:
    """Decode a file; Python files by their coding line (PEP 263), all others as UTF-8.

    Raises:
        UnparsableError: the bytes are no text in that encoding, or the coding line names none.
    """
    bom = data.startswith(codecs.BOM_UTF8)
    body = data[len(codecs.BOM_UTF8) :] if bom else data
    codec = "utf-8"
    if python:
        try:
            codec, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError as error:
            raise UnparsableError(f"encoding: {error.args[0]}") from None
        codec = "utf-8" if codec == "utf-8-sig" else codec
    encoding = Encoding(codec, bom)
    try:
        text = body.decode(codec)
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise UnparsableError(
            f"the bytes are no {codec} text (byte 0x{body[error.start]:02x})", line
        ) from None
    if encoding.encode(text) != data:
        raise UnparsableError(f"the {codec} text does not encode back to the same bytes")
    return text, encoding
