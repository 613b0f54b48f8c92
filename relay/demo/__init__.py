"""The demo: the relay's main job, done over HTTP by two devices of its own.

`client` is the reference client that client developers read, `crypto` stands in for their
end-to-end encryption, `story` plays both devices and tells what happens, over the `network` that
loses an answer, in its `words`. None of them imports Django or anything of the server's.
"""
