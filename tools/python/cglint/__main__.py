import sys

from ._program import main

sys.exit(main())
