"""``hookonce serve --metrics``: an endpoint for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from hookonce import Receiver
from hookonce.http.app import Route

from .statuses import CannotBegin

metrics_option = click.option(
    "--metrics",
    is_flag=True,
    help="Serve metrics for Prometheus at /metrics, to every client that reaches the port.",
)


def metrics_of(
    receivers: Sequence[Receiver], path: str
) -> tuple[Callable[[str, int], None], list[Route]]:
    """Count the receivers' work, and return the route of the metrics; or exit with an error.

    Also returns a function that counts requests, which takes their kind and their status.

    Args:
        path: the path of deliveries.
    """
    if path.rstrip("/") == "/metrics":
        raise click.BadParameter("/metrics is the path of the metrics", param_hint="--path")
    try:
        # Imported here because prometheus_client is an optional dependency.
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
    return observer.count_request, metrics_routes(receivers[0], observer)
