"""The folder ``model`` of a run: the trained weights, and ``model.json``, which says what they belong to."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simgnn.errors import ConfigError
from simgnn.model.spec import LayerSpec
from simgnn.outside import read_text
from simgnn.record.plan import read_plan
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.registry import add_to_path
from simgnn.schema_faults import sentences

SCHEMA_VERSION = 2
LAST, BEST, DESCRIPTION, OWN_LAYERS = "last.safetensors", "best.safetensors", "model.json", "own_layers.py"
FEATURE_MEAN, VERTEX_VECTORS = "feature_mean", "vertex_vectors"
"""Tensors beside the layers' weights: the mean that was subtracted from the features, float64 [F_0]; the vectors that
were learned beside the features, [V, width]."""
Which = Literal["last", "best"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Inputs(_Table):
    """What training did to graph and features before layer 1.

    ``feature_width``: columns of the graph's own features F_0. ``symmetrised``: whether the reverse of every edge was
    added. ``stand_in``: whether features are random numbers for a graph without any. ``centred``: how features were
    held after their mean was subtracted: "single" (rounded to float32) or "exact" (in the training type); None: no mean
    was subtracted. ``vector_width``: columns of the learned vectors that follow the features. ``sampled``: trained on
    mini-batches, where a GCN takes the mean over a vertex and its in-neighbours."""

    feature_width: Annotated[int, Field(ge=1)]
    symmetrised: bool
    stand_in: bool
    centred: Literal["single", "exact"] | None
    vector_width: Annotated[int, Field(ge=0)]
    sampled: bool


class Kept(_Table):
    """A file of weights, and the epoch (counted from 1) after which they were saved. ``train``, ``validation``,
    ``test``: accuracies after that epoch; None: not evaluated, or no such vertices."""

    file: str
    epoch: int
    train: float | None = None
    validation: float | None = None
    test: float | None = None


class ModelFile(_Table):
    """The content of ``model.json``. ``weights``: shape of each tensor by name; ``own_layers``: file with the source of
    the user's own layers. ``best`` None: the run never evaluated validation vertices. ``class_names``: names of the
    classes in the order of the scores, if labels were text. ``embeds``: training was unsupervised, so that the
    ``classes`` columns of the last layer are embeddings and no scores."""

    schema_version: Literal[2]
    layers: Annotated[tuple[LayerSpec, ...], Field(min_length=1)]
    weights: dict[str, list[int]]
    classes: Annotated[int, Field(ge=1)]
    multilabel: bool
    class_names: tuple[str, ...] = ()
    embeds: bool = False
    dtype: Literal["float32", "float64"]
    inputs: Inputs
    own_layers: str | None
    last: Kept
    best: Kept | None
    versions: dict[str, str]

    @property
    def kind(self) -> str:
        """The kind of all layers: gcn, sage, gin, gat or "package.module:Class"."""
        return self.layers[0].kind

    @property
    def weighted(self) -> bool:
        """Whether the run's graph had weights of edges, which all layers use."""
        return self.layers[0].weighted


@dataclass(frozen=True)
class Trained:
    """The trained model of a finished run in the directory ``root``: ``kept`` says which of its weights are meant."""

    root: Path
    described: ModelFile
    kept: Kept

    @property
    def folder(self) -> Path:
        return RunDirectory(self.root).model

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.folder / self.kept.file


def find_own_layers(root: Path) -> None:
    """Make the user's own layers of a run importable by their names, wherever this process was started."""
    for folder in read_plan(RunDirectory(root).plan / "plan.json").code:
        add_to_path(folder)


def score_file(root: Path, rank: int) -> Path:
    """Return the file of a forward pass in the folder ``root`` into which a rank writes the scores of its vertices,
    [n, classes] in the order of its rows."""
    return root / f"scores-{rank}.npy"


def open_trained(root: Path, which: Which) -> Trained:
    """Read the model of a finished run. Raises :class:`ConfigError` if there is no such run, if it has not finished, or
    if its directory lacks a file."""
    run = RunDirectory(root)
    if not run.experiment.is_file() or not run.plan.is_dir():
        raise ConfigError(f"RUN: got {root}, which is not a run directory; expected one that `simgnn run` wrote")
    path = run.model / DESCRIPTION
    if not run.result.is_file():
        raise ConfigError(
            f"RUN: got {root}, whose run has not finished (it has no {run.result.name}); expected a finished run: go "
            "on with simgnn run --resume"
        )
    result = read_result(run.result)
    if result.backend != "executor" or result.status != "ok":
        got = "a simulation" if result.backend != "executor" else f"a run that ended as '{result.status}'"
        raise ConfigError(f"RUN: got {root}, {got}, which has no trained model; expected a finished `simgnn run`")
    described = _read(path)
    kept = described.last if which == "last" else described.best
    if kept is None:
        raise ConfigError(
            f"--weights: got best, but the run in {root} evaluated no validation vertices, so it kept no best epoch; "
            "expected last"
        )
    for name in (kept.file, described.own_layers):
        if name is not None and not (run.model / name).is_file():
            raise ConfigError(
                f"RUN: {run.model / name} is missing; expected the whole directory of a run: copy it again"
            )
    return Trained(root, described, kept)


def _read(path: Path) -> ModelFile:
    remedy = "train again (simgnn run)"
    try:
        text = read_text(path, ConfigError, remedy)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ConfigError(
            f"RUN: {path} cannot be read ({reason}); expected the description of the trained model, which every run "
            f"ends with: copy the whole directory, or {remedy}"
        ) from error
    if f'"schema_version": {SCHEMA_VERSION}' not in text:
        raise ConfigError(
            f"RUN: {path} was written by another version of simgnn; expected schema_version {SCHEMA_VERSION}: {remedy}"
        )
    try:
        return ModelFile.model_validate_json(text)
    except ValidationError as error:
        faults = "; ".join(sentences(ModelFile, error)[:3])
        raise ConfigError(f"RUN: {path} cannot be read ({faults}); copy it again, or {remedy}") from error
