"""Commands whose standard streams are closed, full, or read by nobody: one line at most, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowprec import streams

LOWPREC = "-m lowprec formats"


def shell(line: str, unbuffered: str = "") -> tuple[int, str, str]:
    """Runs a line in which PYTHON stands for this one; exit code, standard output, standard error."""
    line = line.replace("PYTHON", sys.executable)
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False, env=variables
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["formats", "0.1 float8_e4m3fn", "--help"])
def test_a_full_disk_is_said(words: str, unbuffered: str) -> None:
    code, _, errors = shell(f"PYTHON -m lowprec {words} > /dev/full", unbuffered)
    assert errors == "lowprec: standard output cannot be written: No space left on device\n"
    assert code == 2


def test_a_reader_that_is_gone_is_no_error() -> None:
    code, printed, errors = shell(f"PYTHON {LOWPREC} | head -1", "1")
    assert printed.startswith("float64 ")
    assert printed.count("\n") == 1
    assert errors == ""
    assert code in (0, streams.PIPE_CLOSED)  # whoever was faster
    code, _, errors = shell(f"{{ sleep 0.1; PYTHON {LOWPREC}; }} | true")
    assert (code, errors) == (streams.PIPE_CLOSED, "")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&- >&-", 0), ("<&- >&- 2>&-", 0)])
def test_closed_streams_take_what_is_printed(closed: str, code: int) -> None:
    assert shell(f"PYTHON {LOWPREC} {closed}") == (code, "", "")


def test_an_error_goes_nowhere_else_where_standard_error_is_closed() -> None:
    assert shell("PYTHON -m lowprec nonsense 2>&-") == (2, "", "")


def test_the_number_of_a_closed_stream_goes_to_no_file(tmp_path: Path) -> None:
    code = "import os, sys; from lowprec import streams; streams.guarded('x', lambda: 0); "
    code += "f = open(sys.argv[1], 'w'); print('printed'); os.write(1, b'too'); f.write(str(f.fileno())); f.close()"
    assert shell(f'PYTHON -c "{code}" {tmp_path / "file"} <&- >&- 2>&-') == (0, "", "")
    assert int((tmp_path / "file").read_text()) > 2


def test_errors_of_files_are_not_taken_for_those_of_a_stream(tmp_path: Path) -> None:
    def missing() -> int:
        (tmp_path / "nowhere").read_text()
        return 0

    def broken() -> int:
        raise BrokenPipeError(32, "Broken pipe", "another pipe")

    with pytest.raises(FileNotFoundError):
        streams.guarded("x", missing)
    with pytest.raises(BrokenPipeError, match="another pipe"):
        streams.guarded("x", broken)
    with pytest.raises(SystemExit):
        streams.guarded("x", lambda: sys.exit(3))
    assert streams.guarded("x", lambda: 7) == 7
