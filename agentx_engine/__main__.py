"""python -m agentx_engine"""

import sys

try:
    from agentx_engine.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
