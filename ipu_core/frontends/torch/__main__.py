"""`python -m ipu_core.frontends.torch` prints the operations of torch that a captured module may use."""

from ipu_core.frontends.torch.operations import FAMILIES, PARTLY


def table() -> str:
    """The operations in Markdown, family by family."""
    lines = [
        "# Operations of torch that a captured module may use",
        "",
        "Printed by `python -m ipu_core.frontends.torch`. Names are aten's as `torch.export` gives them, undecomposed;",
        "a name stands for all its overloads and for the operation in place (`add_`). Each is compared with torch in",
        "float64, value and gradient, by `tests/ipu_core/frontends/test_torch_operations.py`. What depends on neither",
        "parameters nor inputs (masks, positions) is computed by torch itself and may be any operation. All others are",
        "refused when the module is captured, with operation, layer and line.",
        "",
        "| family | supported and tested |",
        "|---|---|",
        *(f"| {family} | {' '.join(f'`{name}`' for name in sorted(names))} |" for family, names in FAMILIES.items()),
        "",
        "| of these | is refused |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, what in PARTLY.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
