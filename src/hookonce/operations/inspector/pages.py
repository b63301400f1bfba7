"""The pages, as text: templates that escape whatever they are given.

The one place that knows Jinja2. Nothing that came from outside becomes markup, and what no eye can
see is spelt out before.
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...stores.values import DeadReason
from ...watching.steps import State
from . import texts
from .charts import HEIGHT, WIDTH
from .filters import AGES
from .series import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around every page.

    Attributes:
        home: the path the inspector is mounted at.
        root: the path of the pages of the endpoint: the same, or below it where it has several.
        endpoint: the name of the endpoint.
        endpoints: the names of all there are.
        has_inbox: whether there is an inbox to look into.

    """

    home: str
    root: str
    endpoint: str
    endpoints: tuple[str, ...]
    has_inbox: bool


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
        }
        self._environment.globals |= {
            "kinds": tuple(Kind),
            "reasons": tuple(DeadReason),
            "ages": tuple(AGES),
            "states": tuple(state for state in State if state),
            "chart_width": WIDTH,
            "chart_height": HEIGHT,
        }

    def render(self, template: str, frame: Frame, **content: object) -> str:
        """Return a page, or a part of one, that shows the content."""
        return self._environment.get_template(template).render(frame=frame, **content)


def _visible(value: object) -> object:
    """Return what a template prints for a value: markup of a template's own stays as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return texts.visible(value)
