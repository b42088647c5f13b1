"""`python -m hspmd_compiler` is the `hspmd` command."""

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
