"""How a format is shown: a table of bits, ranges and special codes, as text and as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A format shows itself by this module, which therefore must not import it when it runs.
    from lowprec.values.float_format import FloatFormat


def escape(text: str) -> str:
    """The text with HTML's special characters spelt out (html.escape, without the time to import html)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def format_rows(fmt: FloatFormat) -> list[tuple[str, str]]:
    """The lines of the table, each a label and what it says."""
    digits = (fmt.bits + 3) // 4
    code = f"{{:#0{digits + 2}x}}".format
    layout = "s" * fmt.signed + "e" * fmt.exponent_bits + "m" * fmt.mantissa_bits
    special = [f"{'+-' if fmt.negative_zero else ''}0" if fmt.zero else "no zero"]
    special.append(f"infinity {code(fmt.inf_code)}" if fmt.inf_code is not None else "no infinity")
    special.append(f"NaN {code(fmt.nan_code)}" if fmt.nan_code is not None else "no NaN")
    return [
        (
            "bits",
            # A letter for each bit up to tfloat32's 19; longer layouts would break the table's lines.
            f"{fmt.bits} ({layout if fmt.bits <= 19 else f'1 + {fmt.exponent_bits} + {fmt.mantissa_bits}'})",
        ),
        ("bias", str(fmt.bias)),
        ("largest", f"{fmt.max!r} ({code(fmt.max_code)})"),
        ("smallest normal", f"2^{fmt.emin} = {fmt.smallest_normal!r} ({code(fmt.min_normal_code)})"),
        ("smallest positive", f"{fmt.smallest_subnormal!r}" + ("" if fmt.subnormals else ", no subnormals")),
        ("eps", f"{fmt.eps!r}"),
        ("special", ", ".join(special)),
        ("storage", str(fmt.dtype) if fmt.dtype is not None else f"none (codes in {fmt.code_dtype})"),
    ]


def format_text(fmt: FloatFormat) -> str:
    """The table as aligned text."""
    rows = format_rows(fmt)
    width = max(len(label) for label, _ in rows)
    return "\n".join([fmt.name, *(f"  {label:<{width}}  {said}" for label, said in rows)])


def format_html(fmt: FloatFormat) -> str:
    """The table as HTML, for notebooks."""
    body = "".join(f"<tr><th>{escape(label)}</th><td>{escape(said)}</td></tr>" for label, said in format_rows(fmt))
    return f"<table><caption>{escape(fmt.name)}</caption>{body}</table>"
