"""`python -m personafl`."""

from personafl.cli import main

if __name__ == "__main__":
    main()
