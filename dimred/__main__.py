"""``python -m dimred`` is the ``dimred`` command."""

from dimred.cli.main import app

if __name__ == "__main__":
    app()
