"""The connection wrapper (Django looks for it in a module of this name)."""

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that is not made anew only to be idle."""

    def set_autocommit(
        self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False
    ) -> None:
        """Leaving a transaction whose connection broke, Django would connect again on the spot.

        A new connection begins with autocommit on anyway. Where PostgreSQL does not answer, that
        attempt would cost a request its connect_timeout besides what it waited already.
        """
        if autocommit and self.connection is None and not self.in_atomic_block:
            self.autocommit = True
            return
        super().set_autocommit(
            autocommit,
            force_begin_transaction_with_broken_autocommit=(
                force_begin_transaction_with_broken_autocommit
            ),
        )
