"""Rendering of the pages with Jinja2, which escapes every value.

Invisible characters are written as escapes as well, so a sender cannot hide or reorder text.
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...stores.values import DeadReason
from ...watching.steps import EventState
from . import texts
from .charts import HEIGHT, WIDTH
from .filters import AGES
from .seen import AnswerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The values that the templates of all pages share.

    Attributes:
        home: path at which the inspector is mounted.
        root: path of the endpoint's pages: ``home``, or below it if there are several endpoints.
    """

    home: str
    root: str
    endpoint: str
    endpoints: tuple[str, ...]
    has_inbox: bool
    keeps_handled: bool


class Pages:
    """Renders templates."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("hookonce.operations.inspector"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_visible,
        )
        self._environment.filters |= {
            "time": texts.time_of_day,
            "day": texts.day,
            "day_and_time": texts.day_and_time,
            "duration": texts.duration,
            "bytes": texts.byte_count,
            "count": texts.count,
        }
        self._environment.globals |= {
            "kinds": tuple(AnswerKind),
            "reasons": tuple(DeadReason),
            "ages": tuple(AGES),
            "states": tuple(state for state in EventState if state),
            "chart_width": WIDTH,
            "chart_height": HEIGHT,
        }

    def render(self, template: str, frame: Frame, **content: object) -> str:
        return self._environment.get_template(template).render(frame=frame, **content)


def _visible(value: object) -> object:
    # Leave `Markup` unchanged: a template made it, and its values were converted there.
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return texts.visible(value)
