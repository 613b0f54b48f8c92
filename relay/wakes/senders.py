"""From a device to be woken to the verdict on its wake."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from config.kernel import logs
from relay.selectors.wakes import Target
from relay.wakes import gateway, registrations, verdicts, webpush
from relay.wakes.client import Call
from relay.wakes.codes import CallFailedError, Code
from relay.wakes.registrations import Gateway, SealedShutError, Transport, WebPush
from relay.wakes.scheduling import Task
from relay.wakes.verdicts import Verdict
from relay.wakes.wiring import Parts

#: A wake that was held back because one went out a moment ago comes again after this (seconds).
DEBOUNCED_WAIT = 1.0

BUG = logs.event("wake.bug", "error", level=logging.ERROR)


@dataclass(frozen=True)
class Outcome:
    """What became of a device's wake; no verdict when there was no time for it."""

    target: Target
    verdict: Verdict | None


@dataclass(frozen=True)
class _Wake:
    """A wake that is ready to go: for whom, to where, and how its call is made."""

    target: Target
    event_id: UUID
    transport: Transport
    host: str
    call: Callable[[datetime], Call] = field(repr=False)


class Sender:
    """Sends the wakes of one batch.

    `now` is the database's time when `read_at` was the monotonic one: what goes out is dated
    by the one clock, although the batch takes a while.
    """

    def __init__(
        self, *, parts: Parts, now: datetime, read_at: float, ttl_seconds: int, end_before: float
    ) -> None:
        self._parts = parts
        self._now, self._read_at = now, read_at
        self._ttl_seconds = ttl_seconds
        self._end_before = end_before

    def task(self, target: Target, event_id: UUID) -> Task[Outcome] | Verdict:
        """The task that wakes a device, or what is known without trying."""
        try:
            registration = registrations.unseal(device_id=target.device_id, sealed=target.sealed)
        except SealedShutError:
            return verdicts.failed(Code.SEALED_SHUT)
        if isinstance(registration, WebPush):
            wake, most = self._to_push_service(target, event_id, registration), self._parts.per_host
        elif self._parts.gateway is None:
            return verdicts.done(Code.NO_GATEWAY)
        else:
            wake = self._to_gateway(target, event_id, registration, self._parts.gateway)
            most = self._parts.per_gateway
        rank = self._parts.hosts.strikes(wake.host)
        return Task(host=wake.host, most=most, rank=rank, run=lambda: self._outcome(wake))

    def _to_push_service(self, target: Target, event_id: UUID, registration: WebPush) -> _Wake:
        def call(now: datetime) -> Call:
            return webpush.wake_call(
                registration=registration,
                device_id=target.device_id,
                event_id=event_id,
                vapid=self._parts.vapid,
                ttl_seconds=self._ttl_seconds,
                now=now,
            )

        return _Wake(target, event_id, Transport.WEBPUSH, webpush.origin_of(registration), call)

    def _to_gateway(
        self,
        target: Target,
        event_id: UUID,
        registration: Gateway,
        address: gateway.GatewayAddress,
    ) -> _Wake:
        def call(now: datetime) -> Call:
            return gateway.wake_call(
                registration=registration, event_id=event_id, gateway=address, now=now
            )

        return _Wake(target, event_id, Transport.GATEWAY, address.origin, call)

    def _outcome(self, wake: _Wake) -> Outcome:
        """In a thread of the pool; must not raise, or the neighbours' wakes would be lost."""
        try:
            return Outcome(wake.target, self._send(wake))
        except Exception as error:
            BUG(error=logs.where(error))
            return Outcome(wake.target, verdicts.failed(Code.BUG))

    def _send(self, wake: _Wake) -> Verdict | None:
        hosts, whole = self._parts.hosts, self._parts.call_seconds
        if hosts.is_away(wake.host):
            return verdicts.later(Code.HOST_AWAY, verdicts.AWAY_WAIT)
        if not self._parts.recent.take(wake.target.device_id):
            if self._parts.recent.comes_again(wake.target.device_id, wake.event_id):
                return verdicts.later(Code.DEBOUNCED, DEBOUNCED_WAIT)
            return verdicts.done(Code.COALESCED)
        began = time.monotonic()
        seconds = min(whole, self._end_before - began)
        now = self._now + timedelta(seconds=began - self._read_at)
        try:
            reply = self._parts.client.post(wake.call(now), seconds=seconds)
        except CallFailedError as error:
            if error.code is Code.TIMEOUT and seconds < whole:
                return None  # it was not given its time
            verdict = verdicts.of_failure(error.code)
        else:
            verdict = verdicts.of_reply(reply, transport=wake.transport, now=now)
        if verdict.answered is not None:
            hosts.note(wake.host, answered=verdict.answered)
        return verdict
