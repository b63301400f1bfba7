"""Django, configured once for this process; each test brings URL patterns of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import django  # type: ignore[import-untyped]  # Django ships no types
from django.conf import settings  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

__all__ = ["project"]

if not settings.configured:
    settings.configure(
        SECRET_KEY="of these tests",
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": ":memory:",
                "ATOMIC_REQUESTS": True,
            }
        },
        LOGGING_CONFIG=None,
    )
    django.setup()


@contextmanager
def project(urlpatterns: Sequence[Any], **changed: Any) -> Iterator[None]:
    """Use these URL patterns and settings while the block runs."""
    urlconf = ModuleType("urls_of_a_test")
    urlconf.urlpatterns = list(urlpatterns)  # type: ignore[attr-defined]  # Django reads this attribute
    with override_settings(ROOT_URLCONF=urlconf, **changed):
        yield
