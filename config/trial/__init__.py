"""The embedded trial: everything `manage.py up` does (DESIGN section 5).

It is read from the top down: `story` tells the start-up in order; `programs` is the table of
the relay's own processes; `servers` starts `postgres` and `valkey`; `supervisor` keeps
all of them alive and ends them; `variables` decides which settings they share. The rest are
tools: `processes`, `signals`, `ports`, `accounts`, `directory`, `envfile`, `facts`.

Nothing here imports Django or an app. `manage.py` reads the env file before Django is set up,
and whatever needs the relay (migrations, the first admin) runs as a command of its own.
"""
