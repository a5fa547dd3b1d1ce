"""Data sets that need no network, and batches that are a pure function of seed and step."""

import hashlib
import importlib.util
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipu_core.train.checkpoint import UNREADABLE
from lowprec.checks import integer, shown
from lowprec.extras import optional
from lowprec.random import as_key

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
TEST_SHARE = 5  # every fifth of the shuffled digits is kept for testing


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification task: rows of float32 features and int32 class numbers.

    Attributes:
        name: What to call it in tables.
        x_train, x_test: (rows, features) float32.
        y_train, y_test: (rows,) int32 in [0, classes).
    """

    name: str
    x_train: npt.NDArray[np.float32]
    y_train: npt.NDArray[np.int32]
    x_test: npt.NDArray[np.float32]
    y_test: npt.NDArray[np.int32]

    @property
    def features(self) -> int:
        """Features per row."""
        return int(self.x_train.shape[1])

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest label of either part."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    @property
    def deviation(self) -> float:
        """The standard deviation of the training features, rounded to float16; 1 if out of that range or 0."""
        # NumPy's sums differ in their last bits between processors; a factor of the model must not.
        spread = float(np.std(self.x_train, dtype=np.float64)) if self.x_train.size else 0.0
        return float(np.float16(spread)) if 2.0**-14 < spread < 2.0**15 else 1.0

    def digest(self) -> str:
        """A SHA-256 over the four arrays, so that a resumed study can tell whether its data changed."""
        total = hashlib.sha256()
        for name in ARRAYS:
            array = np.ascontiguousarray(getattr(self, name))
            # Equal bytes may be arrays of other shapes or dtypes.
            total.update(f"{name}{array.shape}{array.dtype.str}".encode())
            total.update(array.tobytes())
        return total.hexdigest()


def load(spec: str) -> Dataset:
    """Loads "digits" or an .npz file by its path.

    Raises:
        ValueError: the name is neither, the file cannot be read, or its arrays are not as `from_npz` expects.
    """
    if spec == "digits":
        return digits()
    path = Path(spec)
    if path.suffix != ".npz":
        raise ValueError(f"unknown data {spec!r}: give 'digits' or the path of an .npz file with {', '.join(ARRAYS)}")
    return from_npz(path)


def digits() -> Dataset:
    """scikit-learn's 1,797 real handwritten digits, 8 x 8 pixels, four fifths for training.

    Pixels 0..16 become multiples of 1/16 in [-1/2, 1/2], exact in every 16-bit format. The split is fixed.
    """
    table = _digits_table()
    x, y = (table[:, :-1] / 16 - 0.5).astype(np.float32), table[:, -1].astype(np.int32)
    # Of no study's seed: every point of every study is tested on the same rows.
    order = permutation(len(x), seed=(0, 0))
    x, y = x[order], y[order]
    test = len(x) // TEST_SHARE
    return Dataset("digits", x[test:], y[test:], x[:test], y[:test])


def _digits_table() -> npt.NDArray[np.float64]:
    """Pixels and, last, the digit. Read from the package's file: importing scikit-learn takes a second of CPU."""
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    bunch = optional("sklearn.datasets", extra="study", package="scikit-learn").load_digits()
    return np.column_stack([bunch.data, bunch.target])


def from_npz(path: str | Path) -> Dataset:
    """Reads arrays x_train, y_train, x_test, y_test from an .npz file.

    x may have any real dtype and any number of axes after the first (they are flattened, and not rescaled); y
    holds class numbers from 0, of at least two classes.

    Raises:
        ValueError: one sentence saying what is missing or wrong.
    """
    path = Path(path)
    arrays = _read(path)
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise ValueError(f"{path} lacks {', '.join(missing)}: expected arrays {', '.join(ARRAYS)}, found {found}")
    x_train, x_test = (_features(path, name, arrays[name]) for name in ("x_train", "x_test"))
    y_train, y_test = (_labels(path, name, arrays[name]) for name in ("y_train", "y_test"))
    if x_train.shape[1] != x_test.shape[1]:
        raise ValueError(f"{path}: x_train has {x_train.shape[1]} features a row, x_test {x_test.shape[1]}")
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise ValueError(f"{path}: x_{part} has {len(x)} rows, y_{part} {len(y)}")
    if len(classes := np.union1d(y_train, y_test)) < 2:
        raise ValueError(f"{path}: y_train and y_test hold one class, {classes[0]}: at least two are needed")
    return Dataset(path.stem, x_train, y_train, x_test, y_test)


def _read(path: Path) -> Mapping[str, npt.NDArray[np.generic]]:
    if not path.is_file():
        raise ValueError(f"no such data file: {path}")
    try:
        with path.open("rb") as file:
            # np.load takes anything else for a pickle, and refuses it with a word on pickles.
            whole = zipfile.is_zipfile(file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not whole:
        raise ValueError(f"{path} is not an .npz file, or not a whole one: numpy.savez writes them")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read as an .npz file of plain arrays: {reason}") from error


def _features(path: Path, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    if array.dtype.kind not in "fiu" or array.ndim < 2 or not array.size:
        raise ValueError(
            f"{path}: {name} must be real numbers of shape (rows, features), not {array.dtype} {array.shape}"
        )
    with np.errstate(over="ignore"):  # refused below
        rows = array.reshape(len(array), -1).astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError(f"{path}: {name} holds values that are not finite in float32")
    return rows


def _labels(path: Path, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
    if array.dtype.kind not in "iu" or array.ndim != 1 or not array.size:
        raise ValueError(f"{path}: {name} must be integers of shape (rows,), not {array.dtype} {array.shape}")
    if int(array.min()) < 0 or int(array.max()) > 65535:
        raise ValueError(f"{path}: {name} must hold class numbers 0..65535, found {array.min()}..{array.max()}")
    return array.astype(np.int32)


def permutation(n: int, seed: tuple[int, int]) -> npt.NDArray[np.intp]:
    """A permutation of range(n) that depends on nothing but n and two 64-bit integers.

    The order of raw Philox words, whose stream NumPy guarantees (`Generator.permutation`'s it does not).
    """
    words = np.random.Philox(key=np.array(seed, np.uint64)).random_raw(n)
    # Stable: equal words, rare as they are, would else be ordered by NumPy's version.
    return np.argsort(words, kind="stable")


def shuffled(n: int, size: int, seed: int) -> Callable[[int], npt.NDArray[np.intp]]:
    """Row numbers of each step's batch: a fresh permutation per epoch, the rows left over at its end dropped.

    Args:
        n: Rows in all.
        size: Rows per batch.
        seed: Any integer in [0, 2^64); with the step it determines the batch.

    Raises:
        ValueError: the batch is empty or larger than the data.
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= n:
        raise ValueError(f"a batch of {shown(size)} cannot be drawn from {n} rows: allowed are 1 to {n}")
    as_key(integer("seed", seed))  # refuses what is outside
    per_epoch = n // size
    latest: tuple[int, npt.NDArray[np.intp]] = (0, permutation(n, (seed, 0)))

    def rows(step: int) -> npt.NDArray[np.intp]:
        nonlocal latest
        epoch, index = divmod(integer("step", step, 0, 2**63 - 1), per_epoch)
        # Kept: every step of an epoch would draw the same permutation again.
        if latest[0] != epoch:
            latest = (epoch, permutation(n, (seed, epoch)))
        return latest[1][index * size : (index + 1) * size]

    return rows


def batches(data: Dataset, size: int, seed: int) -> Callable[[int], Batch]:
    """The training batch of any step: `batches(data, 64, seed=0)(step)` is (x, y).

    Raises:
        ValueError: the batch is empty or larger than the training part.
    """
    rows = shuffled(len(data.x_train), size, seed)

    def batch(step: int) -> Batch:
        chosen = rows(step)
        return data.x_train[chosen], data.y_train[chosen]

    return batch
