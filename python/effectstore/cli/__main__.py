"""`python -m effectstore.cli`: the same as the `effectstore` command."""

import sys

from effectstore.cli import main

sys.exit(main())
