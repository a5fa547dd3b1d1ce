"""The notebooks and the pictures beside the pages, as parts of the site: they lie one folder up."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

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
