"""The demo: the relay's main job, done over HTTP by two devices of its own.

`client` is the reference client that client developers read, `crypto` stands in for their
end-to-end encryption, `story` plays both devices and tells what happens. None of the three
imports Django or anything of the server's.
"""
