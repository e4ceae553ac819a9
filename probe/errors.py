"""The one error that is meant for people."""


class ProbeError(ValueError):
    """Something the caller can put right; ``str(error)`` says in one sentence what is wrong and what to do.

    The command line prints it and exits with 2, the app shows it in the page; neither shows a traceback.
    """
