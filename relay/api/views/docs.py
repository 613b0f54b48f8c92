"""`/api/errors`: what each error code means. Made from the catalogue."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.kernel.problems import catalogue


def errors(request: HttpRequest) -> HttpResponse:
    """The page that every problem's `type` points into."""
    return render(request, "relay/errors.html", {"problems": catalogue()})
