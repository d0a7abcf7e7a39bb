"""Pages of ``simgnn report``: what they say, that they need no network, and how a browser shows them."""

import re
from pathlib import Path

import pandas as pd
import pytest

import simgnn
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.report.outcome_page.figures import on_the_way
from tests.cli.conftest import SMALL

PROFILE = "cpu-100gbe-8"
BROWSERS = ("/usr/bin/chromium", "/usr/bin/google-chrome")
DRAWN = "[...document.querySelectorAll('.plotly-graph-div')].every(one => one.querySelector('.main-svg'))"
SIZES = (
    "[...document.querySelectorAll('body *')].filter(one => !['SCRIPT', 'STYLE'].includes(one.tagName) &&"
    " one.getClientRects().length && [...one.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()))"
    ".map(one => parseFloat(getComputedStyle(one).fontSize))"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A prediction, and a run of the same experiment."""
    root = tmp_path_factory.mktemp("pages")
    (root / "small.toml").write_text(SMALL)
    found = {"predicted": root / "predicted", "measured": root / "measured"}
    simgnn.simulate(root / "small.toml", ranks=2, hardware=PROFILE, out=found["predicted"])
    simgnn.run(root / "small.toml", ranks=2, out=found["measured"])
    return found


def check_page(path: Path, *titles: str) -> str:
    text = path.read_text()
    marked = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', marked) == [], "the page fetches nothing"
    assert path.stat().st_size < 10_000_000, "5 MB beside plotly.js, which has as much"
    for title in titles:
        assert f">{title}</h2>" in text, title
    figures, tables = text.count('<div role="img"'), text.count("<summary>the same as a table</summary>")
    assert figures == tables > 0, "every figure has its numbers"
    return text


def test_each_kind_of_page_has_its_sections(folders: dict[str, Path], tmp_path: Path) -> None:
    predicted = check_page(
        simgnn.write_report(folders["predicted"], out=tmp_path / "p.html"),
        "Figures", "Timeline", "Ranks", "Traffic", "Links over time", "Links", "Memory", "Memory over time",
        "What limits it",
    )  # fmt: skip
    assert "predicted to take" in predicted
    assert "hardware not calibrated" in predicted
    measured = check_page(
        simgnn.write_report(folders["measured"], out=tmp_path / "m.html"), "Timeline", "Ranks", "Memory", "Training"
    )
    assert "What limits it" not in measured
    both = check_page(
        simgnn.write_report(folders["predicted"], folders["measured"], out=tmp_path / "b.html"),
        "Comparison", "Traffic, predicted", "Traffic, measured", "Training, measured",
    )  # fmt: skip
    assert re.search(r'class="verdict">predicted [^,]*, measured [^<]* an epoch: [+-]', both)
    several = check_page(simgnn.write_report(*[folders["predicted"]] * 3, out=tmp_path / "s.html"), "Epochs")
    assert 'class="verdict">fastest: predicted' in several


def test_a_page_goes_beside_its_result_and_explains(folders: dict[str, Path]) -> None:
    prediction = simgnn.simulate(folders["predicted"].parent / "small.toml", ranks=2, hardware=PROFILE)
    with pytest.raises(ConfigError, match="expected out = 'FILE"):
        simgnn.write_report(prediction)
    path = simgnn.write_report(folders["predicted"], explain=True)
    assert path == folders["predicted"] / "report.html"
    check_page(path, "Where the epoch goes: its critical path", "What would change it")


def test_what_cannot_be_shown_is_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        (tmp_path / f"empty{number}").mkdir()
    assert invoke(["report", str(tmp_path / "empty1"), str(tmp_path / "empty2"), "--out", f"{tmp_path}/x.html"]) == 2
    told = capsys.readouterr().err
    assert "empty1, which holds no result.json" in told
    assert "empty2, which holds no result.json" in told
    assert not (tmp_path / "x.html").exists()
    assert invoke(["report", str(folders["predicted"]), "--epoch", "99", "--out", f"{tmp_path}/x.html"]) == 2
    assert "expected one of 1 to 4" in capsys.readouterr().err
    assert invoke(["report", str(folders["predicted"]), "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_bytes_on_the_way_are_all_bytes() -> None:
    ops = pd.DataFrame(
        {
            "rank": [0, 1, 0], "op_id": [3, 3, 4], "issued_s": [1.0, 1.0, 2.0], "started_s": [1.0, 1.5, 2.0],
            "ended_s": [2.0, 2.5, 2.0], "bytes_sent": [100, 300, 40], "collective_bytes": [0, 0, 10],
        }
    )  # fmt: skip
    moments, rates = on_the_way(ops, {(3, 0): 0.5, (3, 1): 1.0})
    each = moments[1] - moments[0]
    assert rates["between hosts"].sum() * each == pytest.approx(350.0)
    assert rates["within hosts"].sum() * each == pytest.approx(100.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["predicted", "measured", "both", "several"])
def test_a_browser_shows_pages(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """In light and dark, in a wide and a narrow window, without a request that leaves the page."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install simgnn[browser]")
    chromium = next((path for path in map(Path, BROWSERS) if path.is_file()), None)
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sides = {"both": [*folders.values()], "several": [*folders.values(), folders["predicted"]]}
    shown = sides[kind] if kind in sides else [folders[kind]]
    path = simgnn.write_report(*shown, out=tmp_path / "page.html")
    with sync.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            told, failed, requests = list[tuple[str, str]](), list[str](), list[str]()
            page.on("console", lambda message, into=told: into.append((message.type, message.text)))
            page.on("pageerror", lambda error, into=failed: into.append(str(error)))
            page.on("request", lambda request, into=requests: into.append(request.url))
            page.goto(path.as_uri())
            page.wait_for_function(DRAWN)
            assert [text for kind_of, text in told if kind_of == "error"] == failed == []
            assert requests == [path.as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no sideways scrolling"
            assert min(page.evaluate(SIZES)) >= 11
            page.keyboard.press("Tab")
            reached = page.evaluate("document.activeElement.tagName")
            assert reached in ("A", "DIV", "SUMMARY"), "the keyboard reaches sections and tables"
            page.close()
        browser.close()
