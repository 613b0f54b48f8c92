"""`/livez`, `/readyz` and `/metrics` (PROTOCOL section 9)."""

import hmac
import ipaddress
import os

import prometheus_client
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from config.kernel.problems import Unauthenticated
from relay.api.problems import problem_response, request_id_of
from relay.api.read_only import read_only
from relay.selectors import health
from relay.selectors.gauges import GAUGES


@read_only
def livez(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers at all."""
    return JsonResponse({"status": "ok"})


@read_only
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when this process can store mail; without Redis it can, and says "degraded"."""
    report = health.readiness()
    response = JsonResponse(report.document(), status=200 if report.ready else 503)
    response["Cache-Control"] = "no-store"
    return response


@read_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text, for who has the token; without that setting, for loopback alone."""
    if not _may_read_metrics(request):
        return problem_response(Unauthenticated(), request_id_of(request))
    text = prometheus_client.generate_latest(_counters())
    try:
        text += prometheus_client.generate_latest(GAUGES)
    except (DatabaseError, InterfaceError):
        text += b"# the gauges need PostgreSQL, which does not answer\n"
    return HttpResponse(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def _counters() -> CollectorRegistry:
    """What was counted: by every web process where they share a directory, else by this one."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return prometheus_client.REGISTRY
    shared = CollectorRegistry()
    MultiProcessCollector(shared)
    return shared


def _may_read_metrics(request: HttpRequest) -> bool:
    if settings.METRICS_TOKEN:
        given = request.META.get("HTTP_AUTHORIZATION", "")
        expected = f"Bearer {settings.METRICS_TOKEN}"
        return hmac.compare_digest(given.encode(), expected.encode())
    if settings.TRUSTED_PROXY_COUNT or "HTTP_X_FORWARDED_FOR" in request.META:
        return False  # behind a proxy everyone comes from loopback
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False
