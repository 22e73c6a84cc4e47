"""`python -m pellucid` is the command line."""

import sys

from pellucid.cli import main

sys.exit(main())
