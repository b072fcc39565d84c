"""``python -m zerogap.cli``: the same as the ``zerogap`` command."""

import sys

from zerogap.cli.entry import main

sys.exit(main())
