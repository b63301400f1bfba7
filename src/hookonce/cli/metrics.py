"""``--metrics``: what Prometheus reads from a receiver that was loaded by its name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hookonce import Receiver
from hookonce.http.app import Route

from .statuses import CannotBegin

metrics_option = click.option(
    "--metrics",
    is_flag=True,
    help="Answer at /metrics, for Prometheus. Whoever reaches the port can read them there.",
)


def metrics_of(receivers: Sequence[Receiver], path: str) -> list[Route]:
    """Watch the receivers and return the route of their metrics, or end with what is wrong.

    ``path`` is where deliveries arrive.
    """
    if path.rstrip("/") == "/metrics":
        raise click.BadParameter("/metrics is where the metrics are", param_hint="--path")
    try:
        # Not above: only those who ask for metrics have it installed.
        from hookonce.operations.prometheus import (  # noqa: PLC0415
            PrometheusObserver,
            metrics_routes,
        )
    except ImportError as error:
        raise CannotBegin(str(error)) from None
    observer = PrometheusObserver()
    for receiver in receivers:
        receiver.observe(observer)
        observer.know(receiver)
    return metrics_routes(receivers[0], observer)
