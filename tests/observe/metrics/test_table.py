"""The table of metrics in the documents is that of the catalogue."""

from tools import docs


def test_the_document_lists_every_metric_as_it_is_exported() -> None:
    document, _ = docs.PARTS["metrics"]
    assert docs.updated("metrics") == document.read_text(encoding="utf-8"), "run python -m tools.docs"
