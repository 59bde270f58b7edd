// Checks custom resources (a JSON list on standard input) against the schemas of their operators;
// prints a line for each fault and ends with 1 where there is one.
import { readFileSync } from "node:fs";
import { certManagerIo } from "@kubernetes-models/cert-manager";
import { monitoringCoreosCom } from "@kubernetes-models/prometheus-operator";

const groups = { "cert-manager.io": certManagerIo, "monitoring.coreos.com": monitoringCoreosCom };

for (const manifest of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = manifest.apiVersion.split("/");
  const name = `${manifest.kind} ${manifest.metadata.name}`;
  const Model = groups[group]?.[version]?.[manifest.kind];
  try {
    if (!Model) throw new Error(`no schema of ${manifest.apiVersion}`);
    new Model(manifest).validate();
  } catch (error) {
    console.log(`${name}: ${error.message}`);
    process.exitCode = 1;
  }
}
