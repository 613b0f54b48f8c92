"""Addresses of the REST face."""

from django.urls import path

from relay.api.views import acks, devices, envelopes, wakes

urlpatterns = [
    path("envelopes", envelopes.EnvelopesView.as_view()),
    path("envelopes/batch", envelopes.BatchView.as_view()),
    path("acks", acks.AcksView.as_view()),
    path("devices/<str:device_id>", devices.DevicesView.as_view()),
    path("device/wake", wakes.WakeView.as_view()),
    path("device", devices.DeviceView.as_view()),
    path("instance", devices.InstanceView.as_view()),
]
