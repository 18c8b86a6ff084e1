"""python -m agentx_engine"""

import sys

from agentx_engine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
