"""Waking devices: after an envelope commits, its device gets a wake (PROTOCOL section 7).

An address that a device gave us is sealed in its row (`registrations`). A batch of the outbox
comes in at `handler`, which asks once who is to be woken, and hands the calls to a bounded
pool (`scheduling`); `senders` make them for Web Push and for the gateway, and judge the
answers; `client` carries them out, to addresses that were checked and within a time limit.

A lost or repeated wake never loses or repeats an envelope: mail is pulled, a wake only says
that it may be worth while. So whatever is in doubt here is sent again.
"""
