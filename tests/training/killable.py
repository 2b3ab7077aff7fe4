"""Runs in processes that can be killed or told to stop, and what they left: for tests of resuming and of stopping.

As a program, this file is what a `Worker` starts.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

PERSONAFL = (sys.executable, "-c", "from personafl.cli import main; main()")
SETTINGS = {
    "rounds": 8,
    "activity": 0.5,
    "eval_every": 2,
    "checkpoint_every": 2,
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "steps": 2, "momentum": 0.9},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "stacked", "threads": 1},
}
# What differs between two runs of the same config: when they ran.
OF_THE_MOMENT = ("run.toml", "timings.jsonl", ".lock", ".timings")


class Worker:
    """A process that forks a child for each run, which is much faster than starting Python anew."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def run(self, settings, out, operation=None, seconds=None, log=False):
        """Train with --resume; killed before its n-th operation on a file, or after some seconds.

        With `log`, checkpoints share files and clients' states are mapped, as in large runs. Gives how the process
        ended (-9: killed) and the operations, where it lived to tell them.
        """
        job = {"settings": settings, "out": str(out), "operation": operation, "seconds": seconds, "log": log}
        answer = self._ask(job)
        return answer["ended"], answer["told"]

    def command(self, *arguments, after=None, number=None, ignored=False):
        """A command of personafl, which gets a signal when so many rounds are written and the next is about to be.

        Gives how the process ended and what it said on standard error.
        """
        job = {"arguments": list(map(str, arguments)), "after": after, "number": number, "ignored": ignored}
        answer = self._ask({**job, "seconds": None})
        return answer["ended"], answer["told"]

    def _ask(self, job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve():
    """What a worker does: a line on standard input is a run, a line on standard output is how it ended."""
    import sklearn.datasets  # noqa: F401  (imported once, not in every child)
    import torch

    import personafl.cli.run
    import personafl.jobs  # noqa: F401
    from personafl.config import parse

    torch.set_num_threads(1)  # a process with torch threads cannot be forked
    parse(SETTINGS).federation()  # what is made once and kept, such as the checks of settings
    for line in sys.stdin:
        job = json.loads(line)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            (command_and_exit if "arguments" in job else train_and_exit)(job, send)
        os.close(send)
        if job["seconds"] is not None:
            time.sleep(job["seconds"])
            os.kill(child, signal.SIGKILL)
        with open(receive) as pipe:
            told = json.loads(pipe.read() or "[]")
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"ended": ended, "told": told}), flush=True)


def train_and_exit(job, send):
    from personafl.config import parse
    from personafl.jobs import train_config
    from personafl.storage import client_log

    if job["log"]:
        client_log.WHOLE = 0
        job["settings"]["engine"]["state_memory"] = 0
    operations = []

    def before_operation(event, arguments):
        """Python tells this before it opens, renames, makes or removes anything."""
        if event == "open" and not str(arguments[0]).startswith(job["out"]):
            return
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            if len(operations) == job["operation"]:
                os.kill(os.getpid(), signal.SIGKILL)
            operations.append(f"{event} {str(arguments[0]).removeprefix(job['out'] + '/')}")

    sys.addaudithook(before_operation)
    train_config(parse(job["settings"]), job["out"], resume=True)
    with open(send, "w") as pipe:
        json.dump(operations, pipe)
    os._exit(0)


def command_and_exit(job, send):
    """As the installed program does it."""
    from personafl.cli import main

    sent = []

    def before_operation(event, arguments):
        if event != "open" or sent or job["after"] is None or not arguments[2] & os.O_APPEND:
            return
        path = str(arguments[0])
        if path.endswith("rounds.jsonl") and os.path.exists(path):
            with open(path) as file:
                if len(file.readlines()) == job["after"]:
                    sent.append(job["number"])
                    os.kill(os.getpid(), job["number"])

    signal.signal(signal.SIGINT, signal.SIG_IGN if job["ignored"] else signal.default_int_handler)
    sys.addaudithook(before_operation)
    sys.argv = ["personafl", *job["arguments"]]
    with tempfile.TemporaryFile("w+") as said:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(said.fileno(), 2)
        code = 1
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        said.seek(0)
        with open(send, "w") as pipe:
            json.dump(said.read(), pipe)
    os._exit(code)


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def write_config(path, settings):
    import tomli_w

    path.write_text(tomli_w.dumps(settings))
    return path


def files(folder):
    """Every file of a run, by name, without what tells when it ran."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.endswith(OF_THE_MOMENT)}


def assert_same(folder, expected):
    found = files(folder)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


if __name__ == "__main__":
    serve()
