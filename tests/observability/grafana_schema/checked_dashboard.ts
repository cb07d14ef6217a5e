// The shape of our dashboard by Grafana's published types: each panel is a time series with Prometheus queries.
import type { Dashboard, DataQuery, Panel } from "@grafana/schema";
import type {
  FieldConfig,
  Options,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// JSON has the values of enumerations, not their members.
type Json<T> = T extends string ? `${T}` : T extends number ? number : T extends object ? { [K in keyof T]: Json<T[K]> } : T;

interface PrometheusQuery extends DataQuery {
  expr: string;
  legendFormat: string;
}

type Chart = Json<Omit<Panel, "type" | "targets" | "options" | "fieldConfig">> & {
  type: "timeseries";
  targets: Json<PrometheusQuery>[];
  options: Json<Options>;
  fieldConfig: { defaults: Json<Omit<NonNullable<Panel["fieldConfig"]>["defaults"], "custom">> & { custom?: Json<FieldConfig> }; overrides: [] };
};

export type CheckedDashboard = Json<Omit<Dashboard, "panels">> & { panels: Chart[] };
