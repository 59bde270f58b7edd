"""What the dashboards are made of: a page with variables and links, panels, queries.

Queries name no label of a place: `FILTER` and `$__rate_interval` are put in by Grafana. Where a
generation service's series are told apart by agent, `by_agent` joins them with
`antiphon_generation_info`, which says whom each process plays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as page
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
FILTER = 'namespace=~"$namespace", job=~"$job"'
AGENT, TURN = 'agent=~"$agent"', 'turn=~"$turn"'
RATE = "$__rate_interval"
TAG = "antiphon"
COLUMNS = 24
TITLES = ("Overview", "Learning", "Rollouts", "Services", "Weights")

PanelT = TypeVar("PanelT", timeseries.Panel, stat.Panel)
Steps = list[tuple[float | None, str]]
"""Thresholds: from which value on (None for the first) which colour counts."""


@dataclass(frozen=True)
class Query:
    """A PromQL query and the name of each of its series."""

    expr: str
    legend: str = "__auto"


def by_agent(series: str, *, function: str = "sum", by: str = "agent") -> str:
    """Aggregates a generation service's series by the agent that it plays."""
    info = select("antiphon_generation_info", AGENT)
    joined = f"{series} * on (namespace, job, instance) group_left (agent) {info}"
    return f"{function} by ({by}) ({joined})"


def rate(metric: str, *matchers: str) -> str:
    """The rate of a counter, per second."""
    return f"rate({select(metric, *matchers)}[{RATE}])"


def select(metric: str, *matchers: str) -> str:
    """A metric's series in the chosen namespace and job."""
    return f"{metric}{{{', '.join((FILTER, *matchers))}}}"


def quantile(share: float, metric: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram over the last interval."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(f'{metric}_bucket', *matchers)}))"


def quantile_by_agent(share: float, metric: str) -> str:
    """A quantile of a generation service's histogram, by the agent that it plays."""
    buckets = by_agent(rate(f"antiphon_generation_{metric}_bucket"), by="agent, le")
    return f"histogram_quantile({share}, {buckets})"


def quantiles(metric: str, *matchers: str) -> list[Query]:
    """Median, 95th and 99th percentile of a histogram."""
    return [Query(quantile(s, metric, *matchers), f"p{s * 100:.0f}") for s in (0.5, 0.95, 0.99)]


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 8,
    steps: Steps | None = None,
    low: float | None = 0,
    high: float | None = None,
    stacked: bool = False,
) -> timeseries.Panel:
    """A panel of curves over time.

    Args:
        title: Of the panel.
        description: What it shows and what is good.
        unit: Grafana's name of the unit.
        queries: One at least.
        width: In columns of 24.
        steps: Thresholds drawn as lines.
        low: Where the axis begins; None leaves that to the data.
        high: Where it ends.
        stacked: Whether the curves add up.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(8)
        .line_width(1.5)
        .fill_opacity(40 if stacked else 8)
        .show_points(VisibilityMode.AUTO)
        .span_nulls(True)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "mean", "max"])
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if low is not None:
        panel = panel.min(low)
    if high is not None:
        panel = panel.max(high)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if steps is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.LINE)
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(style)
    return _with_queries(panel, queries)


def figure(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 4,
    steps: Steps | None = None,
    show: BigValueTextMode = BigValueTextMode.VALUE,
    mappings: dict[str, tuple[str, str]] | None = None,
) -> stat.Panel:
    """A panel of single values.

    Args:
        title: Of the panel.
        description: What it shows and what is good.
        unit: Grafana's name of the unit.
        queries: One at least.
        width: In columns of 24.
        steps: Thresholds that colour it.
        show: The value, the name of its series, or both.
        mappings: Text and colour by value.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(width)
        .height(4)
        .text_mode(show)
        .color_mode(
            BigValueColorMode.BACKGROUND_SOLID if steps or mappings else BigValueColorMode.VALUE
        )
        .graph_mode(
            BigValueGraphMode.NONE if show is BigValueTextMode.NAME else BigValueGraphMode.AREA
        )
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("-")
    )
    if steps is not None:
        panel = panel.thresholds(_thresholds(steps))
    if mappings is not None:
        options = {
            value: ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(mappings.items())
        }
        panel = panel.mappings([ValueMap(options=options)])
    return _with_queries(panel, queries)


def heat(title: str, description: str, unit: str, query: Query, width: int = 8) -> heatmap.Panel:
    """A histogram over time: how many observations in which bucket."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(8)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
        .color(heatmap.HeatmapColorOptions().scheme("Viridis").steps(64))
    )
    target = _target("A", query).format(PromQueryFormat.HEATMAP)
    return panel.with_target(target)


def board(
    title: str, description: str, rows: dict[str, list[Any]], *, variables: tuple[str, ...] = ()
) -> Dashboard:
    """A dashboard: rows of panels by title.

    Args:
        title: One of `TITLES`.
        description: What it answers.
        rows: Panels by the title of their row.
        variables: Of "agent" and "turn", those that its panels are chosen by.
    """
    built = (
        page.Dashboard(f"antiphon / {title}")
        .uid(f"antiphon-{title.lower()}")
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .refresh("30s")
        .time("now-6h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .variables(_variables(variables))
        .links([_link(other) for other in TITLES if other != title])
    )
    number = 0
    for name, panels in rows.items():
        number += 1
        built = built.with_row(page.Row(name).id(number))
        for panel in panels:
            number += 1
            built = built.with_panel(panel.id(number))
    return built.build()


def _with_queries(panel: PanelT, queries: tuple[Query, ...]) -> PanelT:
    for letter, query in zip("ABCDEFGHIJ", queries, strict=False):
        panel = panel.with_target(_target(letter, query))
    return panel


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
    )


def _thresholds(steps: Steps) -> page.ThresholdsConfig:
    return (
        page.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=value, color=colour) for value, colour in steps])
    )


def _variables(names: tuple[str, ...]) -> list[Any]:
    chosen = [
        page.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _label("namespace", "Namespace", "antiphon_build_info"),
        _label("job", "Job", 'antiphon_build_info{namespace=~"$namespace"}'),
    ]
    metrics = {
        "agent": select("antiphon_learner_weights_version"),
        "turn": select("antiphon_learner_joint_actions_total"),
    }
    return chosen + [_label(name, name.capitalize(), metrics[name]) for name in names]


def _label(name: str, label: str, metric: str) -> page.QueryVariable:
    """A choice of a label's values; all of them, and series without it, by default."""
    return (
        page.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": f"label_values({metric}, {name})", "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _link(title: str) -> page.DashboardLink:
    return (
        page.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(f"/d/antiphon-{title.lower()}")
        .include_vars(True)
        .keep_time(True)
    )
