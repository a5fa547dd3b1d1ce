"""The notebooks and the pictures beside the pages, as parts of the site: they lie one folder up.

The tutorial's pages show what their snippets print and draw: they run, page by page, when the site is built.
"""

import ast
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

SHOWN = "tutorial/"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = Path(__file__).parent.parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURES = [FOLDER / "convergence.png", FOLDER / "floors.svg"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names the notebooks in the navigation, by their titles."""
    pages = [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]
    config.nav = [{"Notebooks": pages} if "Notebooks" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds them to the site's files: a notebook as a page with the outputs that it was committed with."""
    for path in PICTURES:
        files.append(File.generated(config, f"pictures/{path.name}", abs_src_path=str(path)))
    for path in NOTEBOOKS:
        text, made = MarkdownExporter().from_filename(str(path), {"output_files_dir": path.stem, "unique_key": "out"})
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in made["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page of the tutorial with the output of each of its snippets below it, as a notebook has it."""
    if not page.file.src_uri.startswith(SHOWN):
        return markdown
    names: dict[str, Any] = {"__name__": page.file.src_uri}
    pictures = (f"{page.file.src_uri.removesuffix('.md')}-{number}.png" for number in range(1, 100))

    def shown(snippet: re.Match[str]) -> str:
        printed, value = _run(snippet[1], names)
        text = snippet[0]
        if hasattr(value, "_repr_png_"):
            path = next(pictures)
            files.append(File.generated(config, path, content=value._repr_png_()))
            text += f"\n\n![What the last line draws.]({Path(path).name})"
        elif value is not None:
            printed += f"{value!r}\n"
        return text + (f'\n\n```{{.text .output title="prints"}}\n{printed.rstrip()}\n```' if printed.strip() else "")

    with _elsewhere():
        return SNIPPET.sub(shown, markdown)


def _run(code: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a snippet prints, and the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    # What a study says while it trains goes to the error stream, and is none of the output.
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, "<snippet>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<snippet>", "eval"), names)
    return printed.getvalue(), value


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """A folder of its own for the files that snippets write."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
