"""Run the tutorial notebook and keep its outputs: ``python scripts/run_notebook.py``.

It stops at the first cell that fails, and then changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "notebooks" / "tutorial.ipynb"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh kernel, started in the project's folder.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in notebook.cells:
        # When a cell ran, and warnings with the paths of this machine, are of no use to a reader.
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(TUTORIAL), TUTORIAL)
    print(f"Wrote {TUTORIAL}.")
