"""``dimred pca`` where no file may grow beyond 400,000 bytes: as on a disk that fills up. Takes its arguments."""

import resource

from dimred.cli.main import app

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
app()
