"""`/api/errors`: what each error code means. Made from the catalogue."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.kernel.problems import catalogue
from relay.api.read_only import read_only


@read_only
def errors(request: HttpRequest) -> HttpResponse:
    """The page that every problem's `type` points into."""
    return render(request, "relay/errors.html", {"problems": catalogue()})
