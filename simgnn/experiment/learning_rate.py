"""``[train.learning_rate_schedule]``: how the learning rate changes from epoch to epoch, one table for each kind.

Names and defaults of the options are those of ``torch.optim.lr_scheduler``.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Epochs = Annotated[int, Field(ge=1, le=10**7)]
Rate = Annotated[float, Field(ge=0, le=1e6)]


class _Schedule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    def watches_validation(self) -> bool:
        """Whether the learning rate depends on the validation accuracy."""
        return False


class Constant(_Schedule):
    """The learning rate stays ``train.learning_rate``."""

    kind: Literal["constant"] = "constant"


class Cosine(_Schedule):
    """``CosineAnnealingLR``: from ``train.learning_rate`` down to ``eta_min`` in ``t_max`` epochs, then up again."""

    kind: Literal["cosine"] = "cosine"
    t_max: Epochs | None = Field(default=None, description="epochs of the descent; default: train.epochs")
    eta_min: Rate = Field(default=0.0, description="lowest learning rate")


class Step(_Schedule):
    """``StepLR``: the learning rate is multiplied by ``gamma`` after every ``step_size`` epochs."""

    kind: Literal["step"] = "step"
    step_size: Epochs = Field(description="epochs between two changes")
    gamma: Annotated[float, Field(gt=0, le=1e6)] = Field(default=0.1, description="factor of a change")


class Plateau(_Schedule):
    """``ReduceLROnPlateau``: the learning rate is multiplied by ``factor`` when the metric has not improved for more
    than ``patience`` epochs (of the validation accuracy: evaluations)."""

    kind: Literal["plateau"] = "plateau"
    metric: Literal["loss", "validation"] = Field(
        default="loss", description="training loss of each epoch, or validation accuracy of each evaluated epoch"
    )
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.1, description="factor of a change")
    patience: int = Field(default=10, ge=0, le=10**7, description="values without improvement before a change")
    threshold: Annotated[float, Field(ge=0, le=1e6)] = Field(default=1e-4, description="change that counts")
    threshold_mode: Literal["rel", "abs"] = Field(
        default="rel", description="whether threshold is a share of the best value or a difference from it"
    )
    cooldown: int = Field(default=0, ge=0, le=10**7, description="values after a change that do not count")
    min_lr: Rate = Field(default=0.0, description="lowest learning rate")

    @property
    def watches_validation(self) -> bool:
        return self.metric == "validation"


RateSchedule = Constant | Cosine | Step | Plateau
