"""Calibrates this machine: measures it and writes its hardware profile."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import expm1
from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.analysis.fit.profile import Calibration
from simgnn.analysis.fit.samples import SampleFile
from simgnn.api.experiments import PathLike, path_of
from simgnn.api.measuring import fit, forget_kept, kept_samples, measure_groups, one_at_a_time
from simgnn.errors import ConfigError
from simgnn.hardware.profile.library import CACHE_NAME, calibration_path
from simgnn.hardware.profile.profile import Profile, save_profile
from simgnn.outputs import check_output_file, check_output_folder, make_parent
from simgnn.progress import Progress, progress_of
from simgnn.report import page
from simgnn.report.calibration import write_report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Calibrated:
    """A calibration and the file of its profile, for which it stands wherever a profile is expected. ``samples``: what
    was measured."""

    calibration: Calibration
    samples: tuple[SampleFile, ...]
    path: Path

    @property
    def profile(self) -> Profile:
        """The hardware profile."""
        return self.calibration.profile

    def table(self) -> "pd.DataFrame":
        """Return a row for each fitted curve of work, then for each kind of communication, with its cross-validated
        relative errors."""
        # pandas: loaded when a table is made
        import pandas as pd

        work = [
            {
                "kind": entry.curve.primitive,
                "device": device,
                "ranks": entry.curve.concurrency,
                "threads": entry.curve.threads,
                "samples": entry.fit.used,
                "left_out": entry.fit.left_out,
                "median_error": entry.fit.median_error,
                "worst": expm1(entry.fit.worst),
            }
            for device, entry in self.calibration.curves
        ]
        communication = [
            {"kind": kind, "ranks": ranks, "samples": found.samples, "median_error": found.median, "worst": found.worst}
            for (kind, ranks), found in self.calibration.communication.items()
        ]
        return pd.DataFrame([*work, *communication])

    def report(self, file: PathLike) -> None:
        """Write an HTML page with tables, residuals and plots."""
        written = Path(file)
        make_parent(written)
        write_report(self.calibration, self.samples, written)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Calibrated({self.profile.meta.name}; {self.path})"

    def _repr_html_(self) -> str:
        table: str = self.table().to_html(index=False, float_format="{:.3g}".format, na_rep="-")
        return page.paragraphs([f"{self.profile.meta.description}: {self.path}"]) + table


def calibrate(
    out: PathLike | None = None,
    *,
    quick: bool = False,
    ranks: Sequence[int] | None = None,
    samples: PathLike | None = None,
    fresh: bool = False,
    passes: int = 1,
    pool: Sequence[PathLike] = (),
    progress: Progress | Callable[[str], None] | None = None,
) -> Calibrated:
    """Measure this machine, at most five minutes a pass (``quick``: 20 seconds), and write its profile to ``out``;
    without it, to the cache, where later predictions find it.

    ``ranks``: rank counts to measure, default 1, 2, 4 (quick: 2). ``samples``: folder that keeps the raw samples.
    ``fresh``: use nothing of an interrupted calibration. ``passes``: how often all is measured, in turn. ``pool``:
    folders of samples that are fitted together; nothing is measured. ``progress`` gets lines of text, as ``print``
    does.

    Raises :class:`~simgnn.errors.BackendError` if a measurement fails, :class:`~simgnn.errors.HardwareError` if samples
    do not determine a curve."""
    written, kept, last = path_of(out, "--out"), path_of(samples, "--samples"), calibration_path()
    for path, option in ((written, "--out"), (last, CACHE_NAME)):
        if path is not None:
            check_output_file(path, option)
    if kept is not None:
        check_output_folder(kept, "--samples")
    if pool:
        beside = {"--quick": quick, "--ranks": ranks, "--samples": kept, "--fresh": fresh, "--passes": passes > 1}
        named = [option for option, given in beside.items() if given]
        if named:
            raise ConfigError(
                f"--pool: got {', '.join(named)} too, which only measuring uses; remove them, or remove --pool"
            )
    shown = progress_of(progress)
    with nullcontext() if pool else one_at_a_time():
        if pool:
            files = kept_samples([Path(folder) for folder in pool])
        else:
            files = measure_groups(quick, ranks, shown, kept, fresh, passes)
        calibration = fit(files, shown)
        path = written or last.parent / "calibration" / f"{calibration.profile.meta.name}.toml"
        for each in [path] if written else [path, last]:
            make_parent(each)
            save_profile(calibration.profile, each)
        if not pool:
            forget_kept(quick)
    return Calibrated(calibration, tuple(files), path)
