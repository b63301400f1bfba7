"""The letters and digits of a text, which every notation keeps, and where in the text they stand.

`repr`, JSON, URLs and HTML write all else in ways of their own, one within the other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

_BACKSLASHES = r"(?:\\|%(?:25){0,9}5[Cc]){1,31}"
# A URL that quotes HTML writes the marks of its entities as bytes.
_AND, _NUMBER, _END = (
    f"(?:{mark}|%(?:25){{0,9}}{code})" for mark, code in (("&", "26"), ("#", "23"), (";", "3[Bb]"))
)
_ENTITY = (
    rf"{_AND}(?:amp{_END})*"
    rf"(?:{_NUMBER}(?:[0-9]{{1,7}}|x[0-9A-Fa-f]{{1,6}})|lt|gt|quot|apos|amp){_END}"
)
_TOKEN = re.compile(
    r"(?P<plain>[^\W_]+)"
    rf"|{_BACKSLASHES}(?:u(?P<four>[0-9A-Fa-f]{{4}})|U(?P<eight>[0-9A-Fa-f]{{8}})|[abfnrtv])"
    rf"|(?P<entity>{_ENTITY})"
    rf"|(?P<bytes>(?:{_BACKSLASHES}x[0-9A-Fa-f]{{2}}|(?!{_ENTITY})%(?!(?:25){{0,9}}5[Cc])(?:25){{0,9}}[0-9A-Fa-f]{{2}})+)"
    r"|%(?:25){0,9}5[Cc]"
)
_CODE = re.compile(
    rf"{_NUMBER}(?:(?P<decimal>[0-9]{{1,7}})|x(?P<hexadecimal>[0-9A-Fa-f]{{1,6}})){_END}$"
)
_BYTE = re.compile("(?:x|%(?!(?:25){0,9}5[Cc])(?:25){0,9})([0-9A-Fa-f]{2})")
_HIGHEST = 0x10FFFF


class Skeleton:
    """A text without all that notations write differently.

    Args:
        text: which.

    Attributes:
        letters: its letters and digits.

    """

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._offsets: list[int] = []
        self._spans: list[tuple[int, int]] = []
        size = 0
        for found in _TOKEN.finditer(text):
            letters = found["plain"] or _decoded(found)
            if letters:
                parts.append(letters)
                self._offsets.append(size)
                self._spans.append(found.span())
                size += len(letters)
        self.letters = "".join(parts)

    def places(self, letters: str) -> Iterator[tuple[int, int]]:
        """Yield where in the text these letters stand."""
        at = self.letters.find(letters)
        while at >= 0:
            end = at + len(letters)
            yield self._place(at)[0], self._place(end - 1)[1]
            at = self.letters.find(letters, end)

    def _place(self, at: int) -> tuple[int, int]:
        """Return where the letter at an offset stands: within a word, or all of an escape."""
        index = bisect_right(self._offsets, at) - 1
        (start, end), offset = self._spans[index], self._offsets[index]
        following = self._offsets[index + 1] if index + 1 < len(self._offsets) else None
        length = (len(self.letters) if following is None else following) - offset
        if length != end - start:
            return start, end
        return start + at - offset, start + at - offset + 1


def _decoded(found: re.Match[str]) -> str:
    """Return the letters that an escape stands for."""
    if (raw := found["bytes"]) is not None:
        codes = bytes(int(code, 16) for code in _BYTE.findall(raw))
        try:
            text = codes.decode()
        except UnicodeDecodeError:
            # `ascii` writes one byte for a letter of Latin-1, and a URL two.
            is_of_url = "x" not in raw  # else the backslash is what the URL quotes
            text = codes.decode("utf-8", "ignore") if is_of_url else codes.decode("latin-1")
        return "".join(filter(str.isalnum, text))
    if found["entity"] is not None:
        number = _CODE.search(found["entity"])
        if number is None:
            return ""
        decimal = number["decimal"]
        code = int(decimal) if decimal is not None else int(number["hexadecimal"], 16)
    else:
        code = int(found["four"] or found["eight"] or "0", 16)
    return chr(code) if code <= _HIGHEST and chr(code).isalnum() else ""
