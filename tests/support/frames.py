"""The data that error trackers would send with an error: the local variables of every frame."""

import traceback
from collections.abc import Iterator, Mapping

__all__ = ["leaks"]


def leaks(error: BaseException, hidden: Mapping[str, str], *, but_in: str) -> list[str]:
    """Return the places that show a secret: local variables, and the texts of errors.

    Args:
        error: an error; the errors that it leads to are searched, too.
        hidden: the texts that must not be found, by name.
        but_in: the file whose own frames may hold a secret.

    """
    return [
        f"{name} in {place} of {type(one).__name__}"
        for one in _chain(error)
        for place, text in _places(one, but_in)
        for name, value in hidden.items()
        if value in text
    ]


def _places(error: BaseException, but_in: str) -> Iterator[tuple[str, str]]:
    yield "the error", f"{error} {error!r} {vars(error)!r}"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename != but_in:
            for name, value in frame.f_locals.items():
                yield f"{frame.f_code.co_qualname}:{line} {name}", repr(value)


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is not None and not any(one is known for known in chain):
            chain.append(one)
            ahead += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return chain
