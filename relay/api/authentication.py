"""Bearer tokens on the REST face (PROTOCOL section 1)."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from config.kernel.problems import Unauthenticated
from relay.callers import Caller
from relay.selectors.credentials import authenticate

_LONGEST = 200


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer …`. Whatever is wrong with it, the answer is one and the same."""

    def authenticate(self, request: Request) -> tuple[Caller, None]:
        scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer" or len(token) > _LONGEST:
            raise Unauthenticated
        caller = authenticate(token.strip(" "))
        if caller is None:
            raise Unauthenticated
        return caller, None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="relay"'
