"""The whole contract: properties, a state machine, the served schema, and whatever bytes come.

Each test has two sizes. In CI it runs a fixed number of examples, the same ones each time.
PROPERTY_TIMES=100 makes it a hundred times as long, with other examples at each run:

    PROPERTY_TIMES=100 python -m pytest tests/properties -k state_machine
"""
