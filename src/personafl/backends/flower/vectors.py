"""Word vectors of a federation: a file on every machine, the same everywhere by its hash. They travel in no message.

In an operator's config and in a site's `site.toml`:

    [vectors]
    path = "vectors.npy"   # float32 (words, features), as `model.name = "lstm"` takes them
    sha256 = "…"           # the operator's: which they must be
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personafl.errors import ConfigError, DataError
from personafl.files import checksum
from personafl.states import State

EMBEDDING = "embedding"
"""What models call their table of word vectors."""


@dataclass(frozen=True)
class WordVectorFile:
    """A file of word vectors.

    Parameters
    ----------
    path
        A `.npy` file of float32, (words, features).
    sha256
        Of the file. The operator's is what sites compare theirs with.
    """

    path: str
    sha256: str | None = None

    def beside(self, file: Path) -> WordVectorFile:
        """With its path as it is meant in a file of settings: from that file's folder."""
        return replace(self, path=str(file.resolve().parent / Path(self.path).expanduser()))

    def load(self, wanted: str | None) -> Tensor:
        """The table, if the file has the hash that is wanted; of any other not a byte is interpreted."""
        path = Path(self.path)
        try:
            found = checksum(path)
            if wanted is not None and found != wanted:
                raise ConfigError(f"its word vectors {path.name} have SHA-256 {found}, this run wants {wanted}")
            table = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"cannot read the word vectors {path}: {error}") from None
        if not isinstance(table, np.ndarray) or table.dtype != np.float32 or table.ndim != 2:
            raise DataError(f"the word vectors {path} have to be a .npy file of float32 (words, features)")
        return torch.from_numpy(np.array(table))


def with_vectors(constants: State, site: str, here: WordVectorFile | None, wanted: str | None) -> State:
    """What a model of a run is built with at a site: what its data brings, and the word vectors that the run names."""
    if wanted is None:
        return constants
    if here is None:
        raise ConfigError(
            f"site {site} has no word vectors, this run those with SHA-256 {wanted}: [vectors] in site.toml"
        )
    try:
        return {**constants, EMBEDDING: here.load(wanted)}
    except ConfigError as error:
        raise ConfigError(f"site {site}: {error}") from None
