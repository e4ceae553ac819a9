"""Commands in processes of their own, without the seconds that importing takes each time.

One process imports everything and then forks for each command. What a command starts with, its environment
and what its imports say, is not tested so: that needs a start of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
_SERVER = """
import json, os, sys
import probe.cli
import transformers.modeling_utils

for line in sys.stdin:
    arguments, out, err = json.loads(line)
    child = os.fork()
    if not child:
        code = 70
        try:
            for number, path in enumerate((os.devnull, out, err)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.argv = ["probe", *arguments]
            probe.cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Command(Protocol):
    """`command("verify", "gpt2", "Hi")`: `python -m probe verify gpt2 Hi`, in a process of its own."""

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]: ...


@contextmanager
def commands(folder: Path) -> Generator[Command]:
    """Runs commands; their output passes through files in ``folder``."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None and server.stdout is not None
    taken, told = server.stdin, server.stdout

    def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        given, out, err = [*map(str, arguments)], folder / "out", folder / "err"
        taken.write(json.dumps([given, str(out), str(err)]) + "\n")
        taken.flush()
        return subprocess.CompletedProcess(given, int(told.readline()), out.read_text(), err.read_text())

    yield command
    taken.close()
    server.wait(30)
