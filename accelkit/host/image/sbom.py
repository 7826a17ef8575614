"""What is in an image (SPDX 2.3) and how it was made (in-toto, SLSA provenance 1.0), from its lock. Pure; beside the image, never in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import accelkit
from accelkit.host.errors import UsageError
from accelkit.host.image.contexts import EPOCH
from accelkit.host.image.lockfile import LockedImage

_CREATED: Final = "2025-01-01T00:00:00Z"
"""EPOCH: the same lock gives the same document."""


def spdx(image: str, locked: LockedImage) -> str:
    """An SPDX document as JSON: the base, every Python package and every Debian package that was added, with their digests."""
    digest = locked.digest.removeprefix("sha256:")
    packages = _packages(locked)
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"accelkit-{image}",
        "documentNamespace": f"urn:accelkit:{digest}",
        "creationInfo": {"created": _CREATED, "creators": [f"Tool: accelkit-{accelkit.__version__}"]},
        "packages": [
            {
                "SPDXID": "SPDXRef-image",
                "name": f"accelkit-{image}",
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
            },
            *packages,
        ],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": "SPDXRef-image",
            },
            *(
                {"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS", "relatedSpdxElement": p["SPDXID"]}
                for p in packages
            ),
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def provenance(image: str, locked: LockedImage, made: Mapping[str, str]) -> str:
    """An in-toto statement: what was made, by name and sha256 (an image's own digest, that of an archive, those of files), from what."""
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in made.items()]
    materials = [
        {"uri": f"pkg:oci/{locked.base.name}", "digest": {"sha256": locked.base.digest.removeprefix("sha256:")}}
    ]
    materials += [
        {"uri": f"pkg:pypi/{n}@{p.version}", "digest": {"sha256": p.sha256}} for n, p in sorted(locked.packages.items())
    ]
    materials += [
        {"uri": f"pkg:deb/debian/{n}@{p.version}", "digest": {"sha256": p.sha256}}
        for n, p in sorted(locked.debian.items())
    ]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:accelkit:kit-build:v1",
                "externalParameters": {
                    "image": image, "torch": locked.torch, "build": locked.build, "python": locked.python, "platform": locked.platform,
                    "apt": list(locked.apt), "inputs": locked.inputs,
                },
                "internalParameters": {"recipe": locked.recipe, "lock": locked.digest, "sourceDateEpoch": EPOCH},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": f"urn:accelkit:{accelkit.__version__}"}},
        },
    }  # fmt: skip
    return json.dumps(statement, indent=2) + "\n"


def _packages(locked: LockedImage) -> list[dict[str, Any]]:
    return [
        _package(
            "base",
            locked.base.name,
            locked.base.digest,
            f"pkg:oci/{locked.base.name}?digest={locked.base.digest}",
            None,
        ),
        *(
            _package(f"python-{n}", n, p.version, f"pkg:pypi/{n}@{p.version}", p.sha256, p.file)
            for n, p in sorted(locked.packages.items())
        ),
        *(
            _package(f"debian-{n}", n, p.version, f"pkg:deb/debian/{n}@{p.version}", p.sha256, p.file)
            for n, p in sorted(locked.debian.items())
        ),
    ]


def check(folder: Path) -> None:
    """Raise UsageError for what is there, and is no folder."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        raise UsageError(
            f"--sbom {folder}: {above} is no folder", hint="name a folder: two documents are written into it"
        )


def write(folder: Path, image: str, locked: LockedImage, made: Mapping[str, str]) -> None:
    """Both documents, into a folder that is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.spdx.json").write_text(spdx(image, locked))
    (folder / "provenance.json").write_text(provenance(image, locked, made))


def _package(key: str, name: str, version: str, purl: str, sha256: str | None, file: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {
        "SPDXID": "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in key),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }
    if file:
        found["packageFileName"] = file
    if sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    return found
