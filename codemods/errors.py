"""The one exception a user's mistake raises."""


class UserError(Exception):
    """A mistake in the input or the arguments.

    The message is one line: what is wrong, where, and what to do. The command line prints it and
    exits with status 2; nothing has been written by then.
    """
