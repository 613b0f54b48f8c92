"""What stands before Django in a web process: a request comes in whole, then it has its turn.

The server gives every request a thread as soon as its head is there, and it must not be the
thread that works: a body that never comes would hold it for ever, and four of them the whole
process. So there are many threads that only wait (`intake`), and few that work (`turns`), each
with its own connection to PostgreSQL.

    head → a waiting thread takes the body in → a working thread runs Django → the answer

What is wrong with a body is not said here: the REST face says it in the order of its checks
(PROTOCOL section 1), from what `intake` found.
"""
