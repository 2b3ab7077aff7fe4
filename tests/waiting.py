"""Wait for an event, not for a time: how long is the test's own limit (pyproject.toml), however busy the machine is."""

import time


def until(condition, *processes, pause=0.02):
    """Wait until something holds; a process that ends before is an error with what it said last."""
    while not condition():
        for process in processes:
            assert process.poll() is None or condition(), _said(process)
        time.sleep(pause)


def _said(process):
    said = [stream.read() for stream in (process.stdout, process.stderr) if stream is not None and stream.readable()]
    return f"ended with code {process.returncode}: {said}"
