"""A federation on other people's machines: what `personafl deploy` and `personafl site` do.

`init_federation` writes everything that an operator and the sites need, `Deployment` runs all of it on loopback with
real processes, and `check_site` tells a site whether it is ready to join. `request_membership`, `accept_request` and
`revoke_site` are how sites come and go.
"""

from personafl.backends.deploy.check import check_site as check_site
from personafl.backends.deploy.findings import Finding as Finding
from personafl.backends.deploy.layout import Layout as Layout
from personafl.backends.deploy.layout import init_federation as init_federation
from personafl.backends.deploy.membership import accept_request as accept_request
from personafl.backends.deploy.membership import request_membership as request_membership
from personafl.backends.deploy.membership import revoke_site as revoke_site
from personafl.backends.deploy.rehearsal import Deployment as Deployment
