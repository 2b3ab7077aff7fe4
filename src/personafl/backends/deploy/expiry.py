"""Certificates that end soon and old keys: start-run.sh, `deploy check` and `site check` say so a month before.

A key by itself has no date in it. It is renewed as often as certificates are, by the date of its file.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from personafl.backends.deploy.certificates import SITE_DAYS
from personafl.backends.deploy.findings import Finding

SOON = 30
"""Days."""


def certificate_finding(path: Path, what: str = "certificate", now: datetime | None = None) -> Finding:
    """Whether a certificate holds, and how long.

    Parameters
    ----------
    now
        Left out, what this machine's clock says.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        return Finding(what, "bad", f"cannot read {path.name}: {error.strerror}")
    except ValueError as error:
        return Finding(what, "bad", f"{path.name} is not a certificate: {error}")
    begin, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, now or datetime.now(UTC)
    if not begin <= now <= end:
        dates = f"from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
        return Finding(what, "bad", f"{path.name} is valid {dates}, and this machine's clock says {now:%Y-%m-%d}")
    left = (end - now).days
    about = f"{path.name} is valid until {end:%Y-%m-%d}"
    return Finding(what, "warning", f"{about}: {left} days, renew it") if left < SOON else Finding(what, "good", about)


def key_finding(path: Path, how: str, what: str = "age of the key", now: datetime | None = None) -> Finding:
    """How old a key is.

    Parameters
    ----------
    how
        What renews it.
    now
        Left out, what this machine's clock says.
    """
    try:
        made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        return Finding(what, "bad", f"cannot read {path.name}: {error.strerror}")
    age, about = ((now or datetime.now(UTC)) - made).days, f"{path.name} is of {made:%Y-%m-%d}"
    if age > SITE_DAYS - SOON:
        return Finding(what, "warning", f"{about}, {age} days old: renew it, {how}")
    return Finding(what, "good", f"{about}, to be renewed after {SITE_DAYS} days")


def operator_findings(operator: Path, now: datetime | None = None) -> list[Finding]:
    """All certificates of an operator's folder: the authority's, the server's, those of the sites; and all keys."""
    keys = sorted((operator / "keys").glob("*.pub"))
    named = {"authority": operator / "ca.crt", "server": operator / "server.crt"}
    named |= {
        f"site {key.stem}": path for key in keys if (path := operator / "certificates" / f"{key.stem}.crt").exists()
    }
    found = [certificate_finding(path, what, now) for what, path in named.items()]
    found.append(key_finding(operator / "orders.key", "personafl deploy rotate orders", "key of orders", now))
    how = "at the site: personafl site request --new-key"
    return [*found, *(key_finding(path, how, f"key of {path.stem}", now) for path in keys)]


def main() -> None:
    """For start-run.sh: warn of what ends soon in the operator's folder that is named."""
    for finding in operator_findings(Path(sys.argv[1])):
        if finding.state != "good":
            print(f"warning: {finding.what}: {finding.about} (docs/deploy.md: renewing)", file=sys.stderr)
