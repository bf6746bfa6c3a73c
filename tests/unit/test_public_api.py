"""What ``import pinnace`` promises: these names and no others, documented and typed."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from typing import get_type_hints

import pytest

import pinnace
from pinnace.interpreter import python_argv

NAMES = {"Cluster", "ClusterError", "PinnaceError", "Place", "RunResult", "UsageError", "__version__"}
METHODS = {
    "access", "api_address", "apply", "check_alive", "check_time", "command", "down", "environment", "existing",
    "job", "job_id", "kubeconfig", "kubectl", "kubectl_command", "kubectl_path", "logs", "reach", "run", "run_once",
    "script", "service_urls", "ssh_kubeconfig", "start", "state", "wait_ended", "wait_for_api", "wait_ready",
}  # fmt: skip


def functions(of: type) -> dict[str, types.FunctionType]:
    """The public methods and properties that a class defines itself."""
    found = {}
    for name, value in vars(of).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and not name.startswith("_"):
            found[name] = function
    return found


def test_these_names_and_no_others() -> None:
    assert set(pinnace.__all__) == NAMES
    assert all(getattr(pinnace, name) for name in NAMES)
    script = "import pinnace; print(*(name for name in vars(pinnace) if not name.startswith('_')))"
    listed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert set(listed) <= {"annotations", "importlib", "TYPE_CHECKING"}, "something else is exported"
    with pytest.raises(AttributeError, match="no attribute 'Directory'"):
        _ = pinnace.Directory


def test_a_cluster_can_do_these_things_and_no_others() -> None:
    assert set(functions(pinnace.Cluster)) == METHODS


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_everything_is_documented(name: str) -> None:
    found = getattr(pinnace, name)
    assert inspect.getdoc(found)
    assert not [method for method, function in functions(found).items() if not function.__doc__]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_parameter_and_result_is_typed(name: str) -> None:
    function = functions(pinnace.Cluster)[name]
    parameters = set(inspect.signature(function).parameters) - {"self"}
    assert parameters | {"return"} == set(function.__annotations__)


def test_a_result_has_an_exit_code() -> None:
    assert get_type_hints(pinnace.Cluster.run, localns=vars(_types()))["return"] is pinnace.RunResult
    assert pinnace.RunResult(exit_code=3).exit_code == 3


def _types() -> types.SimpleNamespace:
    """The names that annotations use and that are imported for type checkers alone."""
    return types.SimpleNamespace(OnLine=object, Path=object, StepReporter=object)


def test_the_agents_do_not_pay_for_it() -> None:
    script = "import sys, pinnace.node.stopping; print([name for name in sys.modules if name.startswith('pinnace.cl')])"
    argv = [*python_argv("pinnace.node")[:1], "-c", script]
    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"


def test_importing_it_installs_no_signal_handler() -> None:
    script = (
        "import signal; before = [signal.getsignal(n) for n in signal.valid_signals()]; "
        "import pinnace; pinnace.Cluster; "
        "print(before == [signal.getsignal(n) for n in signal.valid_signals()])"
    )
    argv = [sys.executable, "-c", script]
    assert subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout == "True\n"
