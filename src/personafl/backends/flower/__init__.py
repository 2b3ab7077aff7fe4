"""The same algorithms on Flower: the runner in a ServerApp, each client at a site of its own.

`app` has the two apps, `site` is what a site does, `server` the clients as the runner sees them. Only `app`,
`members`, `messages`, `nodes`, `server`, `signing` and `simulation` import flwr.
"""

import os

# Nothing is told to anybody unless somebody asks for it: flwr looks at these when it is imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
