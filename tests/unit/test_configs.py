"""What stands in configs/ for other programs fits what the gateway shows, and those programs take it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from metrics.catalogue import CATALOGUE, Entry

CONFIGS = Path(__file__).parents[2] / "configs"
DASHBOARD: dict[str, Any] = json.loads((CONFIGS / "grafana" / "stillframe.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
ALERTS: dict[str, Any] = yaml.safe_load((CONFIGS / "prometheus" / "alerts.yml").read_text())
ALERT_TESTS: dict[str, Any] = yaml.safe_load((CONFIGS / "prometheus" / "alerts.test.yml").read_text())
# Labels that Prometheus itself adds, and those that a histogram has.
_ADDED = {"instance", "job", "le"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool here: Debian's package prometheus has it"
)


def _expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for one in DASHBOARD["annotations"]["list"]:
        yield f"annotation {one['name']}", one["expr"]
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            yield f"variable {one['name']}", one["definition"]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def _entry(name: str) -> Entry | None:
    for entry in CATALOGUE.values():
        ends = ("_bucket", "_sum", "_count") if entry.kind == "histogram" else ("",)
        if name in [entry.exposed + end for end in ends]:
            return entry
    return None


@pytest.mark.parametrize(("where", "expression"), list(_expressions()))
def test_every_metric_label_and_value_that_is_asked_for_exists(where: str, expression: str) -> None:
    names = re.findall(r"stillframe_\w+", expression)
    assert names or 'up{job="stillframe"}' in expression, where
    for name in names:
        assert _entry(name) is not None, f"{where}: {name}"
    for name, selector in re.findall(r"(stillframe_\w+)\{([^}]*)\}", expression):
        entry = _entry(name)
        assert entry is not None
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            assert label in {*entry.labels, *_ADDED}, f"{where}: {name} has no label {label}"
            if label in entry.labels:
                known = re.findall(r"\w+", entry.labels[label])
                assert set(values.split("|")) <= set(known), f"{where}: {label}={values}"
    for group in re.findall(r"by \(([^)]*)\)", expression):
        labels = {label for name in names if (entry := _entry(name)) for label in entry.labels}
        assert set(group.split(", ")) <= labels | _ADDED, where


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel["type"] != "row"], ids=lambda one: one["title"])
def test_a_legend_names_labels_that_the_expression_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"]
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD)))
    assert used == variables
    # Every Grafana gives its own.
    assert "id" not in DASHBOARD


def test_the_dashboard_and_the_alerts_show_most_of_the_catalogue() -> None:
    shown = {
        entry.name
        for _, one in _expressions()
        for name in re.findall(r"stillframe_\w+", one)
        if (entry := _entry(name))
    }
    assert set(CATALOGUE) - shown == {
        "stillframe_derived_write_tokens",
        "stillframe_image_fetches",
        "stillframe_asyncio_tasks",
        # Its tokens are shown.
        "stillframe_kv_resident_blocks",
        "stillframe_kv_evicted_blocks",
    }


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    alerts = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    fired = {one["alertname"] for test in ALERT_TESTS["tests"] for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert {rule["alert"] for rule in alerts} == fired
    for rule in alerts:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
)
def test_prometheus_takes_them(arguments: tuple[str, ...]) -> None:
    made = subprocess.run(["promtool", *arguments], cwd=CONFIGS / "prometheus", capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


@needs_promtool
def test_prometheus_takes_what_the_panels_ask(tmp_path: Path) -> None:
    rules: list[dict[str, str]] = []
    for number, (where, expression) in enumerate(_expressions()):
        if not where.startswith("variable"):
            asked = re.sub(r"\$__(rate_interval|range)", "5m", expression).replace("$instance", ".*")
            rules.append({"record": f"asked:{number}", "expr": asked})
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    made = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def test_the_collector_uses_what_it_defines() -> None:
    config: dict[str, Any] = yaml.safe_load((CONFIGS / "otel" / "collector.yaml").read_text())
    assert config["service"]["pipelines"].keys() == {"traces", "metrics"}
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            used[kind] |= set(names)
    assert used == {kind: set(config[kind]) for kind in used}


def test_grafana_is_provisioned_with_the_dashboard() -> None:
    folder = CONFIGS / "grafana" / "provisioning"
    sources: dict[str, Any] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())
    providers: dict[str, Any] = yaml.safe_load((folder / "dashboards" / "stillframe.yaml").read_text())
    assert sources["datasources"][0]["type"] == "prometheus"
    assert providers["providers"][0]["type"] == "file"
