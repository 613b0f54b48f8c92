"""The one way a trial gives up."""


class TrialError(Exception):
    """The trial cannot start or go on; the text is what the person who started it reads.

    `exit_code` is 1 for a state of the machine, 2 for a bad argument.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
