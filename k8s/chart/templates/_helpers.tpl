{{/* Labels of an object of one component: (list . "learner") */}}
{{- define "antiphon.labels" -}}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/name: antiphon
app.kubernetes.io/part-of: antiphon
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* Labels that select the pods of a component: "learner" */}}
{{- define "antiphon.selector" -}}
app.kubernetes.io/component: {{ . }}
app.kubernetes.io/name: antiphon
app.kubernetes.io/part-of: antiphon
{{- end }}

{{/* An image: (list . "learner") */}}
{{- define "antiphon.image" -}}
{{- $root := index . 0 -}}
{{- $cuda := and $root.Values.gpu (ne (index . 1) "services") -}}
{{ $root.Values.image.repository }}/{{ index . 1 }}:{{ $root.Values.image.tag | default (printf "%s%s" $root.Chart.AppVersion (ternary "-cuda" "" $cuda)) }}
{{- end }}

{{/* ConfigMaps are named by their content: what uses them starts anew when it changes. */}}
{{- define "antiphon.runName" -}}
run-{{ required "run: the text of run.toml (--set-file run=run.toml)" .Values.run | sha256sum | trunc 10 }}
{{- end }}
{{- define "antiphon.taskName" -}}
{{- if not .Values.task }}{{ fail "task: modules of the task (--set-file task.NAME\\.py=FILE)" }}{{ end -}}
task-{{ .Values.task | toJson | sha256sum | trunc 10 }}
{{- end }}

{{/* What every pod says of itself. */}}
{{- define "antiphon.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "antiphon.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
{{- end }}

{{- define "antiphon.ports" -}}
- name: grpc
  containerPort: 50051
- name: health
  containerPort: 50052
- name: metrics
  containerPort: 9464
{{- end }}

{{/* A headless Service's ports. */}}
{{- define "antiphon.servicePorts" -}}
- name: grpc
  port: 50051
  targetPort: grpc
  appProtocol: kubernetes.io/h2c
{{- end }}

{{/* Resources of a pod of learner or agents with so many GPUs. */}}
{{- define "antiphon.gpu" -}}
requests:
  cpu: "4"
  memory: 32Gi
  ephemeral-storage: 4Gi
limits:
  memory: 96Gi
  ephemeral-storage: 40Gi
  nvidia.com/gpu: {{ . }}
{{- end }}

{{- define "antiphon.tolerations" -}}
tolerations:
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
{{- end }}

{{/* The volume `models`. */}}
{{- define "antiphon.models" -}}
- name: models
  {{- if .Values.modelCache.enabled }}
  persistentVolumeClaim:
    claimName: models
    readOnly: true
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
