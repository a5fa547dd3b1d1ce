"""The spelling "optimiser" of 0.1.0, in names, roles and files: still read, with a warning that names the new one."""

import warnings
from collections.abc import Iterable

OLDER, OWN = "optimiser", "optimizer"


def respelled(names: Iterable[str], where: str) -> dict[str, str]:
    """Names as they are spelt now, by what was given; one DeprecationWarning if any was spelt otherwise.

    Args:
        names: Such as "optimizer.first_moment.w".
        where: What has them, for the warning.
    """
    found = {name: name.replace(OLDER, OWN) if isinstance(name, str) else name for name in names}
    older = [name for name, own in found.items() if name != own]
    if older:
        more = f" and {len(older) - 1} more" if len(older) > 1 else ""
        warnings.warn(f"{where}: {older[0]!r}{more} is spelt {found[older[0]]!r} now", DeprecationWarning, stacklevel=2)
    return found


def older_lines(lines: str) -> str:
    """Printed Blocks as version 0.1.0 printed them, which digests of its steps are made of."""
    return lines.replace(OWN, OLDER).replace(" iterations, each with its part", " rounds, each with its part")
