"""The sections of an experiment that are not slots."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from simgnn.experiment.learning_rate import RateSchedule
from simgnn.experiment.problems import shown
from simgnn.graph.splits import SPLIT_NAMES
from simgnn.limits import MAX_RANKS
from simgnn.model.spec import BUILT_IN_LAYERS, STEPS, dropped_steps
from simgnn.policy import BatchingTraits, Choices, Idle, Refusal, chosen

MODEL_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

Count = Annotated[int, Field(ge=1, le=2**40)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Decay = Annotated[float, Field(ge=0, le=1e6)]
Text = Annotated[str, Field(min_length=1)]
Column = Text | Width


class Section(BaseModel):
    """The base of all tables: frozen, unknown keys rejected, no silent conversions. ``table``: its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    table: ClassVar[str] = ""

    def chosen(self, *options: str) -> list[str]:
        """Return those of the options whose value differs from the default."""
        return chosen(self, options)

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        """Yield the options that contradict one another or the traits of other choices."""
        yield from ()

    def idle(self, choices: Choices) -> Iterator[Idle]:
        """Yield the options that differ from their default but have no effect."""
        yield from ()

    def refusal(self, option: str, beside: str, expected: str, why: str) -> Refusal:
        """Return the refusal of an option's value because of another choice."""
        return Refusal(
            self.table, option, f"got {shown(getattr(self, option))} with {beside}, expected {expected}: {why}"
        )


class Splits(Section):
    """``graph.splits`` as a table: by part a file of ids, or by part its share of the labelled vertices."""

    train: str | float
    validation: str | float | None = None
    test: str | float | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "Splits":
        """Check a table. Raises ValueError."""
        table = {SPLIT_NAMES.get(key, key): value for key, value in given.items()}
        parts = {key: value for key, value in table.items() if key != "seed"}
        files = [isinstance(value, str) and bool(value) for value in parts.values()]
        shares = [type(value) in (int, float) and 0 < float(cast(float, value)) <= 1 for value in parts.values()]
        if len(table) < len(given) or set(parts) - {"train", "validation", "test"} or "train" not in parts:
            raise ValueError(f"{cls._expected()}; got the keys {', '.join(map(str, given))}")
        if not (all(files) or all(shares)) or (all(files) and "seed" in table):
            raise ValueError(cls._expected())
        if all(shares) and sum(float(cast(float, value)) for value in parts.values()) > 1 + 1e-9:
            raise ValueError("expected shares that add up to 1 at most")
        if type(table.get("seed", 0)) is not int or not 0 <= cast(int, table.get("seed", 0)) < 2**63:
            raise ValueError("expected a seed that is a whole number from 0 to 2**63 - 1")
        return cls.model_validate(table)

    @staticmethod
    def _expected() -> str:
        return (
            "expected a path, or train, validation and test with a file of ids each, or with a share from 0 to 1 each "
            "and perhaps a seed, such as { train = 0.6, validation = 0.2, test = 0.2, seed = 0 }"
        )


class GraphSection(Section):
    """``[graph]``: the source of the graph, and what simgnn generates or changes in it."""

    table: ClassVar[str] = "graph"

    source: str = Field(
        default="synthetic:communities",
        min_length=1,
        description="a file (.npz, .npy, .csv, .tsv, .parquet, .mtx, .bin, .pt), synthetic:communities, "
        "synthetic:rmat, ogb:NAME, dgl:PATH, pyg:PATH or stats:FILE",
    )
    vertices: Count | None = Field(default=None, description="vertices to generate")
    edges: Count | None = Field(default=None, description="undirected edges to generate")
    classes: Annotated[int, Field(ge=2, le=2**20)] | None = Field(default=None, description="classes to generate")
    multilabel: bool | None = Field(default=None, description="generate several labels per vertex")
    feature_width: Width | None = Field(default=None, description="width of generated features")
    stand_in_features: Width | None = Field(
        default=None, description="width of random features for a graph that has none; results then say synthetic"
    )
    centre: bool | None = Field(
        default=None, description="subtract the mean of each column of the features; sparse ones stay sparse"
    )
    symmetrise: bool | None = Field(default=None, description="add the other direction of every edge")
    weights: Literal["auto", "ignore"] = Field(
        default="auto", description="weights of edges; auto: used where the file has them, ignore: left out"
    )
    weight_column: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None,
        description="column or array of weights, by name, or by number from 1 in a list without a header; default: "
        "weight, weights, w or edge_weight, or the third of three columns without a header",
    )
    root: str | None = Field(default=None, min_length=1, description="folder of OGB data sets")
    relation: Text | None = Field(
        default=None, description="the relation to train on, of a graph with several types: SOURCE,NAME,TARGET or NAME"
    )
    homogeneous: bool | None = Field(default=None, description="merge all types of vertices and relations into one")
    features: Text | None = Field(
        default=None, description="file with the features of the vertices: .npy, .csv, .tsv or .parquet"
    )
    labels: Text | None = Field(default=None, description="file with the labels of the vertices")
    splits: Text | Splits | None = Field(
        default=None,
        description="file with a column of train, validation, test; folder with a file of ids for each; or a table of "
        "such files, or of shares and a seed",
    )
    labelled: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="share of all vertices that stay labelled; training, validation and test in proportion, by seed",
    )
    source_column: Column | None = Field(
        default=None, description="column of edges' sources, by name, or by number from 1 in a list without a header"
    )
    target_column: Column | None = Field(default=None, description="column of edges' targets, likewise")
    id_column: Column | None = Field(
        default=None, description="column of vertices' ids in the files of features, labels and splits"
    )
    feature_columns: Annotated[tuple[Column, ...], Field(min_length=1)] | None = Field(
        default=None, description="columns of features; default: all but those of ids, labels and splits"
    )
    label_column: Column | None = Field(default=None, description="column of labels")
    split_column: Column | None = Field(default=None, description="column of train, validation, test")
    ids: Literal["auto", "numbers", "names"] | None = Field(
        default=None,
        description="whether ids in an edge list are the numbers 0..V-1 of vertices, or names, which may be text",
    )

    @field_validator("splits", mode="before")
    @classmethod
    def _table_of_splits(cls, given: object) -> object:
        return Splits.of(given) if isinstance(given, Mapping) else given

    def options(self) -> dict[str, object]:
        """Return all options that differ from their default but the source, for the loader."""
        return self.model_dump(exclude={"source"}, exclude_defaults=True)

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.weights == "ignore" and self.weight_column is not None:
            yield self.refusal("weight_column", "graph.weights = 'ignore'", "none", "weights are left out; remove it")
        if self.source.startswith("stats:"):
            for key in self.options():
                why = "a statistics file describes the whole graph; remove it"
                yield self.refusal(key, f"graph.source = '{self.source}'", "none", why)
            return
        for key, needed in (("label_column", "labels"), ("split_column", "splits"), ("feature_columns", "features")):
            if getattr(self, key) is not None and getattr(self, needed) is None:
                yield self.refusal(
                    key, f"no graph.{needed}", "none", f"it is a column of that file; state graph.{needed}"
                )
        files = self._side_files()
        if self.id_column is not None and all(file.endswith(".npy") for file in files):
            found = "no such file"
            why = "it is a column of files of vertices; state graph.features, graph.labels or graph.splits"
            if files:
                found, why = "only .npy files", "their rows are the vertices in order; remove it"
            yield self.refusal("id_column", found, "none", why)

    def _side_files(self) -> list[str]:
        """The files of features, labels and splits that are stated."""
        parts = self.splits.model_dump().values() if isinstance(self.splits, Splits) else (self.splits,)
        return [file for file in (self.features, self.labels, *parts) if isinstance(file, str)]


class ModelSection(Section):
    """``[model]``: the network. ``hidden`` is one width, or one for each of the layers - 1 hidden layers."""

    table: ClassVar[str] = "model"

    kind: str = Field(default="gcn", description="gcn, sage, gin, gat or package.module:Class")
    layers: int = Field(default=2, ge=1, le=1000, description="number of layers")
    hidden: Width | Annotated[tuple[Width, ...], Field(max_length=999)] = Field(
        default=256, description="width of the hidden layers"
    )
    order: Literal["auto", "aggregate-first", "transform-first"] = Field(
        default="auto", description="which side of a layer is exchanged and aggregated; auto: the narrower one"
    )
    hoist: Literal["auto", "never"] = Field(
        default="auto", description="whether the constant aggregate of layer 1's inputs may be computed once"
    )

    heads: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="attention heads of gat's hidden layers, which share their width; its last layer has one",
    )
    activation: Literal["auto", "relu", "elu"] = Field(
        default="auto", description="function after every hidden layer; auto: relu, but elu for gat on mini-batches"
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the elements of rows between layers that training drops, to the nearest 65,536th; the "
        "others grow by 1 / (1 - share)",
    )

    @property
    def summary(self) -> str:
        """What is trained, in one line: two experiments of one model read alike."""
        widths = self.hidden if isinstance(self.hidden, int) else " and ".join(map(str, self.hidden))
        hidden = f", hidden width {widths}" if self.layers > 1 else ""
        layers = "1 layer" if self.layers == 1 else f"{self.layers} layers"
        order = "" if self.order == "auto" else f", {self.order}"
        return f"{self.kind}, {layers}{hidden}, dropout {self.dropout:g}{order}"

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in BUILT_IN_LAYERS and not MODEL_CLASS.fullmatch(kind):
            names = ", ".join(BUILT_IN_LAYERS)
            raise ValueError(f"expected one of {names}, or a class of your own as package.module:Class")
        return kind

    @field_validator("dropout")
    @classmethod
    def _drawn(cls, share: float) -> float:
        if share and dropped_steps(share) in (0, STEPS):
            raise ValueError(f"expected 0, or a share that, rounded to a multiple of 1/{STEPS}, is neither 0 nor 1")
        return share

    @property
    def built_in(self) -> bool:
        """Whether the layers are simgnn's own, not a user's class."""
        return self.kind in BUILT_IN_LAYERS

    @property
    def attends(self) -> bool:
        """Whether attention weights the edges."""
        return self.kind == "gat"

    @property
    def nonlinear(self) -> bool:
        """Whether a layer applies more than one matrix to its sums."""
        return self.kind == "gin"

    @property
    def aggregates_first(self) -> str:
        """The choice by which every layer sums rows before it transforms them; "" if there is none."""
        return "model.kind = 'gin'" if self.nonlinear else self._ordered("aggregate-first")

    @property
    def transforms_first(self) -> str:
        """The choice by which every layer transforms its rows before it sums them; "" if there is none."""
        return "model.kind = 'gat'" if self.attends else self._ordered("transform-first")

    def _ordered(self, order: str) -> str:
        return f"model.order = '{order}'" if self.order == order else ""

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        kind, widths = f"model.kind = '{self.kind}'", self.hidden_widths()
        uneven = [str(width) for width in dict.fromkeys(widths) if width % self.heads]
        if len(widths) != self.layers - 1:
            yield Refusal(
                "model", "hidden",
                f"got {len(widths)} widths, expected {self.layers - 1}: one for each layer but the last "
                f"(model.layers = {self.layers}); give one number for equal widths",
            )  # fmt: skip
        elif self.attends and uneven:
            yield Refusal(
                "model", "hidden",
                f"got {', '.join(uneven)} with model.heads = {self.heads}, expected multiples of it: heads share a "
                "layer's width evenly",
            )  # fmt: skip
        if self.nonlinear and self.order == "transform-first":
            why = "its perceptron is not linear, so it cannot be moved before the sum"
            yield self.refusal("order", kind, "'auto' or 'aggregate-first'", why)
        if self.attends and self.order == "aggregate-first":
            yield self.refusal("order", kind, "'auto' or 'transform-first'", "attention compares transformed rows")
        # an experiment that is read back states every field, so a default is not taken for a choice
        if not self.attends and self.chosen("heads"):
            yield self.refusal("heads", kind, "none", "only gat has attention heads")
        for option, default in (("activation", "'auto'"), ("dropout", "0")):
            if not self.built_in and self.chosen(option):
                why = f"only {', '.join(BUILT_IN_LAYERS)} have it; a layer of your own does that in its update"
                yield self.refusal(option, kind, default, why)

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if self.chosen("hoist"):
            choice, communication = self.transforms_first, choices.communication
            if choices.batching.mini_batches:
                choice = f"batching.kind = '{choices.batching.label}'"
            elif not choice and not self.built_in and not self.aggregates_first:
                choice = f"model.kind = '{self.kind}' and model.order = '{self.order}'"
            elif not choice and communication.resends_inputs():
                choice = f"communication.kind = '{communication.label}', which sends input rows in every epoch here"
            elif not choice and communication.input_rows() == "transformed":
                choice = f"communication.kind = '{communication.label}', which sends transformed rows here"
            if choice:
                yield Idle("hoist", choice, "layer 1 has no sum that stays the same over epochs; remove it")
        if self.layers == 1:
            for option in self.chosen("activation", "dropout"):
                yield Idle(option, "model.layers = 1", "it follows every layer but the last, so none; remove it")

    def function(self, sampled: bool) -> Literal["relu", "elu"]:
        """Return the activation function, on ``sampled`` mini-batches or the full graph. Source for mini-batches:
        docs/systems/mini-batches.md; relu on the full graph is our choice."""
        if self.activation == "auto":
            return "elu" if sampled and self.kind == "gat" else "relu"
        return self.activation

    def hidden_widths(self) -> tuple[int, ...]:
        """Return the width of each hidden layer: ``layers`` - 1 numbers."""
        if isinstance(self.hidden, tuple):
            return self.hidden
        return (self.hidden,) * (self.layers - 1)

    def widths(self, inputs: int, classes: int) -> tuple[int, ...]:
        """Return the widths of the rows before layer 1, between layers and after the last: ``layers`` + 1 numbers."""
        return (inputs, *self.hidden_widths(), classes)


class ClusterSection(Section):
    """``[cluster]``: hosts and ranks per host; the hardware profile supplies missing ones."""

    hosts: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = Field(default=None, description="number of hosts")
    ranks_per_host: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = Field(
        default=None, description="ranks on each host"
    )


class TrainSection(Section):
    """``[train]``: optimisation, evaluation and checkpoints."""

    table: ClassVar[str] = "train"

    epochs: int = Field(default=200, ge=1, le=10**7, description="passes over the training vertices")
    optimizer: Literal["adam", "sgd"] = Field(default="adam", description="update rule")
    learning_rate: float = Field(default=0.01, ge=0, le=1e6, description="step size; 0: nothing is learned")
    learning_rate_schedule: Annotated[RateSchedule, Field(discriminator="kind")] | None = Field(
        default=None, description="how learning_rate changes from epoch to epoch; default: not at all"
    )
    weight_decay: Decay | Annotated[tuple[Decay, ...], Field(max_length=1000)] = Field(
        default=0.0, description="L2 penalty added to gradients: one number, or one for each layer"
    )
    decay_biases: bool = Field(default=True, description="whether weight_decay applies to parameters named bias, too")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of sgd")
    dtype: Literal["float32", "float64"] = Field(default="float32", description="type of rows and parameters")
    gradient_mean: Literal["seeds", "ranks"] = Field(
        default="seeds",
        description="loss of a mini-batch step: mean over all ranks' seeds, or mean of the ranks' means",
    )
    eval_every: int = Field(
        default=1,
        ge=0,
        le=10**7,
        description="epochs between evaluations of validation and test vertices; 0: only after the last epoch",
    )
    patience: int = Field(
        default=0,
        ge=0,
        le=10**7,
        description="evaluations in a row without a better validation accuracy after which training ends; 0: never",
    )
    clip_norm: float = Field(
        default=0.0,
        ge=0,
        le=1e30,
        description="largest norm of all ranks' gradient rows of a layer's output; each rank clips its share; 0: off",
    )
    clip_scale: Literal["inverse-sqrt", "sqrt"] = Field(
        default="inverse-sqrt",
        description="a rank's clip_norm: divided or multiplied by the root of the number of ranks",
    )
    checkpoint_every: int = Field(default=0, ge=0, le=10**7, description="epochs between checkpoints; 0: none")
    timeout: float = Field(
        default=300.0, gt=0, le=10**6, description="seconds after which a rank that others wait for counts as lost"
    )

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.momentum and self.optimizer != "sgd":
            yield self.refusal("momentum", f"train.optimizer = '{self.optimizer}'", "0", "only sgd has momentum")
        layers = choices.model.layers
        if isinstance(self.weight_decay, tuple) and len(self.weight_decay) != layers:
            yield Refusal(
                "train", "weight_decay",
                f"got {len(self.weight_decay)} numbers, expected {layers}: one for each layer (model.layers = "
                f"{layers}); give one number for all layers",
            )  # fmt: skip
        if not self.decay_biases and not self.decays:
            why = "nothing decays; remove it, or give train.weight_decay"
            yield self.refusal("decay_biases", "train.weight_decay = 0", "none", why)
        yield from self._unevaluated()
        if not self.clip_norm and self.chosen("clip_scale"):
            why = "nothing is clipped; remove it, or give train.clip_norm"
            yield self.refusal("clip_scale", "train.clip_norm = 0", "none", why)
        if self.clip_norm and not choices.model.built_in:
            why = f"gradients are clipped inside {', '.join(BUILT_IN_LAYERS)}; in a layer of your own, clip there"
            yield self.refusal("clip_norm", f"model.kind = '{choices.model.kind}'", "0", why)
        if self.clip_norm and choices.communication.cut == "vertex-cut":
            why = "a rank holds parts of gradient rows, whose norm says nothing of the whole"
            yield self.refusal("clip_norm", f"communication.kind = '{choices.communication.label}'", "0", why)
        if choices.trains and not choices.batching.mini_batches and self.chosen("gradient_mean"):
            sampled = choices.fitting(BatchingTraits, lambda batching: batching.mini_batches)
            why = (
                "the loss of a full graph is the mean over its training vertices; remove it, or sample mini-batches "
                f"(batching.kind = {sampled})"
            )
            yield self.refusal("gradient_mean", f"batching.kind = '{choices.batching.label}'", "'seeds'", why)

    def _unevaluated(self) -> Iterator[Refusal]:
        """Yield the options that need evaluations while training runs, where there are none."""
        if self.eval_every:
            return
        why = "the validation accuracy is only known after the last epoch; set train.eval_every"
        if self.patience:
            yield self.refusal("patience", "train.eval_every = 0", "0", why)
        if self.learning_rate_schedule is not None and self.learning_rate_schedule.watches_validation:
            message = f"got metric = 'validation' with train.eval_every = 0, expected metric = 'loss': {why}"
            yield Refusal("train", "learning_rate_schedule", message)

    @property
    def decays(self) -> bool:
        """Whether any parameter has an L2 penalty."""
        return any(self.weight_decay) if isinstance(self.weight_decay, tuple) else self.weight_decay > 0

    @property
    def needs_validation(self) -> str:
        """The key of an option that depends on the validation accuracy; "" if there is none."""
        schedule = self.learning_rate_schedule
        if schedule is not None and schedule.watches_validation:
            return "train.learning_rate_schedule.metric"
        return "train.patience" if self.patience else ""

    @property
    def update_rule(self) -> str:
        """The optimizer's name; "sgd-momentum" for sgd with momentum, which keeps a value beside each parameter."""
        return "sgd-momentum" if self.momentum > 0 else self.optimizer

    def gradient_limit(self, ranks: int) -> float:
        """Return the norm to which each of P ranks clips its gradient rows; 0: no clipping. Source: SANCUS, local
        clipping; its derivation divides by the root of P, its conclusion multiplies (docs/systems/sancus.md)."""
        share = math.sqrt(ranks)
        return self.clip_norm / share if self.clip_scale == "inverse-sqrt" else self.clip_norm * share


class HardwareSection(Section):
    """``[hardware]``: the machine that is predicted."""

    profile: str | None = Field(
        default=None, min_length=1, description="name or path of a profile; default: this machine's last calibration"
    )
    threads_per_rank: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        default="auto", description="CPU threads of one rank; auto: the host's cores divided by its ranks"
    )

    @property
    def threads(self) -> int | None:
        """CPU threads of one rank; None: the host's cores divided by its ranks."""
        return None if self.threads_per_rank == "auto" else self.threads_per_rank
