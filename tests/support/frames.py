"""What error trackers would send away with an error: the locals of every frame it came through."""

import traceback
from collections.abc import Iterator, Mapping

__all__ = ["leaks"]


def leaks(error: BaseException, hidden: Mapping[str, str], *, but_in: str) -> list[str]:
    """Return where something hidden can be found: in locals, and in what errors say and hold.

    Args:
        error: an error; those that it leads to are looked at too.
        hidden: what must not be found, by its name.
        but_in: the file whose own frames may hold it.

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
