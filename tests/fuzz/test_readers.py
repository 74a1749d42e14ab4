"""Whatever stands in a file, a reader gives what was written or one of our own errors, with a short text."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dimred.config import StageOneConfig, load_config
from dimred.errors import ConfigError, DimredError
from tests.fuzz.readers import READERS, Reader

# NumPy warns of a header that Python 2 could have written; warnings are errors in these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Reading .*npy:UserWarning")
AS_IT_IS = [pytest.param(reader, False, id=reader.name) for reader in READERS]
FORGED = [pytest.param(reader, True, id=f"{reader.name}, checksum put right") for reader in READERS if reader.forge]
EVERY_READER = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
PIECES = (
    b"\0",
    b"\xff" * 8,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 5000,
    b"1e999",
    b"-1",
    b"NaN",
    b"../../x",
    b"\\ud800",
)


def read(reader: Reader, path: Path) -> None:
    said = ""
    try:
        reader.read(path)
    except DimredError as error:
        said = str(error)
    assert len(said) <= 2 * DimredError.LONGEST, "an error text dumps what it read"


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Some changes: how, where (a share of the length), and with what."""
    what = st.binary(min_size=1, max_size=8) | st.sampled_from(PIECES)
    how = st.sampled_from(["write", "insert", "cut", "repeat", "flip"])
    return draw(st.lists(st.tuples(how, st.floats(0, 1), what), min_size=1, max_size=4))


def changed(whole: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for how, share, what in changes:
        place = int(share * len(whole))
        before, after = whole[:place], whole[place:]
        whole = {
            "write": before + what + after[len(what) :],
            "insert": before + what + after,
            "cut": before if what[0] % 2 else before + after[len(what) :],
            "repeat": before + 3 * after[: what[0]] + after,
            "flip": before + bytes([after[0] ^ (1 << what[0] % 8)]) + after[1:] if after else before,
        }[how]
    return whole


@pytest.mark.parametrize(("reader", "forged"), AS_IT_IS + FORGED)
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(changes=edits())
@example(changes=[("cut", 0.0, b"\1")])
def test_a_changed_file_is_read_or_refused_in_our_own_words(reader, forged, changes, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / reader.name
    path.write_bytes(changed(reader.example, changes))
    if forged:
        reader.forge(path)
    read(reader, path)


@EVERY_READER
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_at_all(reader, content, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / reader.name
    path.write_bytes(content)
    read(reader, path)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nseed: &b [*a, *a]\n",
        "a: &a {<<: *a}\n",
        'seed: !!int ""\n',
        "seed: !!bool x\n",
        "seed: !!timestamp x\n",
        "seed: 0001-01-01 00:00:00 +23:59\n",
        "seed: 0x" + "f" * 20_000 + "\n",
        "? [a]\n: 1\n",
        "!!python/object/apply:os.system ['true']\n",
        "seed: " + "x" * 90_000,
        "#" * 200_000,
    ],
)
def test_hostile_configurations(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    reader = next(reader for reader in READERS if reader.name == "stage_1.yaml")
    with pytest.raises(DimredError) as refused:
        reader.read(path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", ["[" * 2_500, "{a: " * 2_500, "- " * 12_000])
def test_a_deeply_nested_configuration_is_refused_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(StageOneConfig, path)
