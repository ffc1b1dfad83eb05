"""Writes the dashboards of resources/grafana: python -m tools.dashboards"""

from tools.dashboards.grafana import FOLDER, dashboards, written

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in dashboards().items():
        (FOLDER / f"{name}.json").write_text(written(dashboard), encoding="utf-8")
        print(f"{name}.json: {len(dashboard['panels'])} panels and rows")
