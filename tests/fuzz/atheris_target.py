"""Coverage-guided fuzzing of one reader: ``python -m tests.fuzz.atheris_target READER FOLDER SECONDS``."""

import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dimred"]):
    from tests.fuzz.readers import READERS

_MEMORY = 2 << 30  # address space: a reader that believes a claimed size runs into it


def main() -> None:
    """Start from the whole example; every second input is forged, so that the parser behind the checksum is reached."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    reader = next(reader for reader in READERS if reader.name == name)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "whole").write_bytes(b"\0" + reader.example)
    (corpus / "forged").write_bytes(b"\1" + reader.example)
    path = folder / reader.name

    def one_input(data: bytes) -> None:
        from tests.fuzz.test_readers import read

        path.write_bytes(data[1:])
        if data[:1] != b"\0" and reader.forge:
            reader.forge(path)
        read(reader, path)

    one_input(b"\0" + reader.example)  # loads what it needs, before the limit
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    options = [f"-max_total_time={seconds}", "-timeout=10", "-max_len=20000", "-rss_limit_mb=3000", "-verbosity=1"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
