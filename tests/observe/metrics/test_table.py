"""The table of metrics in the documents is that of the catalogue."""

from tools.docs import metrics_table


def test_the_document_lists_every_metric_as_it_is_exported() -> None:
    text = metrics_table.DOCUMENT.read_text(encoding="utf-8")
    assert metrics_table.updated(text) == text, "run python -m tools.docs.metrics_table"
