"""`python -m murmuration`: the command, where it is not on PATH."""

import sys

from murmuration import command

sys.exit(command.main())
