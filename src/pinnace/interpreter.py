"""How every Python process of ours is started: without regard to the working directory and the user's environment.

    python -I …/pinnace/interpreter.py MODULE ARGUMENT…

`python -m` would look for modules in the working directory first. A job whose directory does not exist on a host begins
in /tmp, where any user of that host may have put an ``argparse.py``. ``-I`` ignores the directory, all ``PYTHON*``
variables and the user's own site-packages; where pinnace is installed by way of one of these, this file still finds it,
because it lies beside it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("site-packages", "dist-packages")


def python_argv(module: str, *args: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of ours."""
    return [python, "-I", os.path.abspath(__file__), module, *args]  # noqa: PTH100 - pathlib is not loaded here


def with_own_packages(path: Sequence[str], own: str) -> list[str]:
    """Where to look for modules: the standard library, then the directory that this package is in, then the others."""
    others = [entry for entry in path if entry != own]
    first = next((n for n, entry in enumerate(others) if entry.endswith(PACKAGES)), len(others))
    return [*others[:first], own, *others[first:]]


def without_relative(path: Sequence[str], python_path: str, directory: str) -> list[str]:
    """``path`` without what an empty or relative entry of PYTHONPATH has made of the working directory.

    `PYTHONPATH=$PYTHONPATH:/somewhere` in a login script is enough for one.
    """
    relative = {
        os.path.normpath(os.path.join(directory, entry))  # noqa: PTH118
        for entry in (python_path.split(":") if python_path else ())
        if not entry.startswith("/")
    }
    return [entry for entry in path if entry and os.path.normpath(entry) not in relative]


def leave_working_directory() -> None:
    """For commands that others have started: let nothing more be imported from the working directory."""
    try:
        directory = os.getcwd()  # noqa: PTH109
    except OSError:  # it is gone
        directory = "/"
    sys.path[:] = without_relative(sys.path, os.environ.get("PYTHONPATH", ""), directory)


if __name__ == "__main__":
    sys.path[:] = with_own_packages(sys.path, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    del sys.argv[0]
    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
