"""What the tests of fetches share."""

import pytest
from fetch_cases import Case, make_case


@pytest.fixture(scope="session", params=[(0, 1, 2, 3), (0, 0, 1, 1, 2)], ids=["a rank a host", "two ranks a host"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("fetches") / "batches", request.param)
