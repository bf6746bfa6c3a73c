"""``testbed run``: users, streams, exit codes, signals and terminals, on a real bed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from testbed.errors import BedError, UsageError
from testbed.plan import USERS
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed import Bed

pytestmark = pytest.mark.bed

TESTBED = [sys.executable, "-m", "testbed"]
LIMIT = 20.0


def processes(bed: Bed, pattern: str, on: str = "login") -> str:
    return bed.run(["pgrep", "-f", pattern], user="root", on=on, check=False).stdout


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_the_commands(bed_environment: dict[str, str], code: int) -> None:
    command = [*TESTBED, "run", "--", "sh", "-c", f"exit {code}"]
    assert subprocess.run(command, env=bed_environment, check=False, timeout=LIMIT).returncode == code


def test_death_by_signal_is_128_and_its_number(bed: Bed) -> None:
    assert bed.run(["sh", "-c", "kill -KILL $$"], check=False).returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_there(bed: Bed) -> None:
    result = bed.run(["no-such-command"], check=False)
    assert (result.returncode, "not found on login" in result.stderr) == (127, True)


def test_a_file_that_is_no_command(bed: Bed) -> None:
    assert bed.run(["/etc/passwd"], check=False).returncode == 126


def test_streams_are_apart(bed: Bed) -> None:
    result = bed.run(["sh", "-c", "cat; echo wrong >&2"], input="right\n")
    assert (result.stdout, result.stderr) == ("right\n", "wrong\n")


def test_many_bytes_pass_unchanged(bed_environment: dict[str, str]) -> None:
    data = os.urandom(3_000_000)
    command = [*TESTBED, "run", "--on", "n1", "--", "cat"]
    result = subprocess.run(command, env=bed_environment, input=data, capture_output=True, check=True, timeout=LIMIT)
    assert result.stdout == data


def test_options_of_the_command_are_the_commands(bed_environment: dict[str, str]) -> None:
    command = [*TESTBED, "run", "echo", "--user", "-n", "--", "x"]
    result = subprocess.run(command, env=bed_environment, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert result.stdout == "--user -n -- x\n"


def test_the_environment_is_that_of_a_login(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("TERM", "xterm")
    pairs = dict(line.split("=", 1) for line in bed.run(["env"], user="bob").stdout.splitlines())
    assert pairs == {
        "HOME": "/home/bob",
        "USER": "bob",
        "LOGNAME": "bob",
        "SHELL": "/bin/bash",
        "PATH": "/opt/pinnace/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
    }


def test_a_login_shell_finds_the_product(bed: Bed) -> None:
    path = bed.run(["bash", "-lc", "echo $PATH"]).stdout
    assert path.startswith("/opt/pinnace/bin:")


def test_one_starts_at_home_or_where_one_asked(bed: Bed) -> None:
    assert bed.run(["pwd"], user="carol").stdout == "/home/carol\n"
    assert bed.run(["pwd"], cwd="/usr/share").stdout == "/usr/share\n"
    assert bed.run(["pwd"], cwd="/no/such", check=False).returncode == 1


@pytest.mark.parametrize("user", ["alice", "bob", "carol", "dave", "erin.doe", "root"])
def test_ids_are_the_users(bed: Bed, user: str) -> None:
    uid = {"root": 0, **{known.name: known.uid for known in USERS}}[user]
    assert bed.run(["id", "-u"], user=user).stdout == f"{uid}\n"
    assert bed.run(["id", "-G"], user=user).stdout.split()[0] == str(uid)


def test_groups_share_directories_in_jobs_too(bed: Bed) -> None:
    write = ["sh", "-c", "umask 007; echo $USER > /home/groups/project/$USER; stat -c %G:%a /home/groups/project/$USER"]
    for user, prefix in (("alice", []), ("bob", ["srun"]), ("carol", ["srun"])):
        assert bed.run([*prefix, *write], user=user).stdout == "project:660\n"
    assert "denied" in bed.run(["ls", "/home/groups/project"], user="dave", check=False).stderr
    assert "denied" in bed.run(["srun", "ls", "/home/groups/survey"], user="bob", check=False).stderr
    bed.run(["srun", "ls", "/home/groups/survey"])


def test_users_exist_in_the_bed_only(bed: Bed) -> None:
    assert subprocess.run(["getent", "passwd", "alice"], check=False, timeout=LIMIT).returncode != 0
    assert bed.run(["getent", "passwd", "alice"], on="n1").stdout.startswith("alice:")


def test_unknown_users_and_hosts_are_refused(bed: Bed) -> None:
    assert "no user mallory" in bed.run(["true"], user="mallory", check=False).stderr
    with pytest.raises(UsageError, match="no host 'n9'"):
        bed.run(["true"], on="n9")


def test_a_failed_command_says_what_it_said(bed: Bed) -> None:
    with pytest.raises(BedError, match=r"alice@n1: ls /nowhere ended with 2(?s:.*)No such file"):
        bed.run(["ls", "/nowhere"], on="n1")


def test_secrets_of_the_machine_are_out_of_sight(bed: Bed) -> None:
    for path in ("/root", str(bed.directories.state)):
        assert bed.run(["ls", path], check=False).returncode != 0
        assert bed.run(["ls", path], user="root", check=False).stdout == ""


def test_the_machine_cannot_be_written(bed: Bed) -> None:
    assert "Read-only" in bed.run(["touch", "/usr/x"], user="root", check=False).stderr


def test_root_changes_the_etc_of_one_host_only(bed: Bed) -> None:
    bed.run(["touch", "/etc/only-here"], user="root", on="n1")
    assert bed.run(["test", "-e", "/etc/only-here"], on="n2", check=False).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_pass_through(bed: Bed, number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 7' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    with bed.popen(["bash", "-c", script]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "got\n"
        assert process.wait(LIMIT) == 7


def test_a_signal_that_kills_the_command_is_the_exit_code(bed: Bed) -> None:
    with bed.popen(["sh", "-c", "echo ready; exec sleep 600"]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT) == 128 + signal.SIGTERM


def test_killed_for_good_it_takes_the_command_with_it(bed: Bed) -> None:
    with bed.popen(["sh", "-c", "echo ready; exec sleep 98765"], on="n1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes(bed, "^sleep 98765", on="n1")
        process.kill()
        process.wait(LIMIT)
    wait_until("the end of sleep", lambda: not processes(bed, "^sleep 98765", on="n1"), limit=LIMIT)


class Terminal:
    """A terminal of 30 lines and 100 columns with ``testbed run`` on it."""

    def __init__(self, bed: Bed, script: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(30, 100)
        command = bed.command(["bash", "-c", script], on="n1")
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str) -> None:
        end = time.monotonic() + LIMIT
        while text not in self.seen:
            assert select.select([self.master], [], [], max(0, end - time.monotonic()))[0], self.seen
            self.seen += os.read(self.master, 4096).decode()
        self.seen = self.seen.split(text, 1)[1]

    def close(self) -> int:
        code = self.process.wait(LIMIT)
        os.close(self.master)
        return code


def test_a_terminal_passes_through(bed: Bed) -> None:
    terminal = Terminal(bed, "tty; stty size; read -r x; stty size; echo got:$x; exit 5")
    terminal.expect("/dev/pts/")
    terminal.expect("30 100")
    terminal.resize(40, 120)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type("hello\r")
    terminal.expect("40 120")
    terminal.expect("got:hello")
    assert terminal.close() == 5


def test_control_c_reaches_the_command_on_the_terminal(bed: Bed) -> None:
    terminal = Terminal(bed, "echo ready; sleep 600; echo not reached")
    terminal.expect("ready")
    terminal.type("\x03")
    assert terminal.close() == 128 + signal.SIGINT


def test_no_terminal_without_one(bed: Bed) -> None:
    assert bed.run(["tty"], check=False).stdout == "not a tty\n"
