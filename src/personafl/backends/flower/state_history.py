"""What a client keeps between rounds, on its own disk: a file for each round that it trained in.

A client cannot know whether its answer arrived, so it writes its new state beside the old one. The server's next
message says which round it accepted last: that state is the truth, and what is newer is not looked at. It also says
which round that was in the oldest checkpoint that it may go back to itself, after a crash: what is older than that is
deleted. What is newer is not: a message that was held up on its way may know less than the ones that came before it.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from personafl.errors import RunError
from personafl.files import disk_errors, make_folder, write_tensors
from personafl.states import State


class StateHistory:
    """The states of one client in one run, by round.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     versions = StateHistory(Path(folder), "ann")
    ...     for round in (1, 2, 3):
    ...         versions.write(round, {"v": torch.full((2,), float(round))})
    ...     versions.settle(accepted=2, durable=2)
    ...     versions.rounds(), versions.read(2, {"v": torch.zeros(2)})["v"].tolist()
    ([2, 3], [2.0, 2.0])
    """

    def __init__(self, folder: Path, client: str) -> None:
        self.folder, self._client = folder, client

    def rounds(self) -> list[int]:
        """The rounds that there is a state of."""
        return sorted(int(path.stem[6:]) for path in self.folder.glob("round-*.safetensors"))

    def read(self, round: int, like: State) -> State:
        """The state after a round, which must have the names, types and shapes of `like`."""
        path = self._path(round)
        try:
            state = load_file(path)
        except FileNotFoundError:
            raise RunError(
                f"site {self._client} has no state of round {round}, which the server accepted: {path.name} is gone; "
                "bring it back from a backup, or begin the run anew"
            ) from None
        except (OSError, SafetensorError) as error:
            raise RunError(f"site {self._client}: its state {path.name} cannot be read: {error}") from None
        if {n: (v.dtype, v.shape) for n, v in state.items()} != {n: (v.dtype, v.shape) for n, v in like.items()}:
            raise RunError(f"site {self._client}: its state {path.name} belongs to another algorithm or model")
        return state

    def write(self, round: int, state: State) -> None:
        """Keep the state after a round, whole or not at all."""
        make_folder(self.folder)
        write_tensors(self._path(round), state)

    def settle(self, accepted: int, durable: int) -> None:
        """Delete what the server cannot come back to."""
        with disk_errors(self.folder, "cleaning"):
            for round in self.rounds():
                if round < min(durable, accepted):
                    self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"
