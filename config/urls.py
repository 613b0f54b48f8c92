"""Every address of the relay: the composition on top of the apps."""

from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from relay.api import handlers
from relay.api.views import docs, health

urlpatterns = [
    path("v1/", include("relay.api.urls")),
    path("livez", health.livez),
    path("readyz", health.readyz),
    path("metrics", health.metrics),
    path("", docs.index),
    path("api/errors", docs.errors),
    path("api/errors/", RedirectView.as_view(url="/api/errors")),
    path("api/schema", RedirectView.as_view(url="/api/schema/")),
    path("api/docs", RedirectView.as_view(url="/api/docs/")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("admin", RedirectView.as_view(url="/admin/")),
    path("admin/", include("adminui.urls")),
]

handler400 = handlers.bad_request
handler403 = handlers.forbidden
handler404 = handlers.not_found
handler500 = handlers.server_error
