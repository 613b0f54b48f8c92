"""Plain views that only show something."""

from collections.abc import Callable
from functools import wraps

from django.http import HttpRequest, HttpResponse

from config.kernel.problems import MethodNotAllowed
from relay.api.problems import problem_response, request_id_of

View = Callable[[HttpRequest], HttpResponse]


def read_only(view: View) -> View:
    """GET and HEAD; anything else is METHOD_NOT_ALLOWED."""

    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if request.method in ("GET", "HEAD"):
            return view(request)
        problem = MethodNotAllowed(headers={"Allow": "GET"})
        return problem_response(problem, request_id_of(request))

    return checked
