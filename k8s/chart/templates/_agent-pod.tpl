{{/* The pod of an agent: (dict "root" $ "number" 0 "agent" AGENT), with "job" true for a JobSet's. */}}
{{- define "antiphon.agentPod" -}}
{{- $engine := $.agent.engine | default "transformers" -}}
metadata:
  labels:
    {{- if not $.job }}
    antiphon/agent: {{ $.number | quote }}
    {{- end }}
    {{- if not $.root.Values.modelCache.enabled }}
    antiphon/internet: "true"
    {{- end }}
    {{- include "antiphon.selector" "agent" | nindent 4 }}
spec:
  {{- if $.job }}
  restartPolicy: OnFailure
  {{- end }}
  serviceAccountName: agent-{{ $.number }}
  {{- include "antiphon.pod" $.root | nindent 2 }}
  terminationGracePeriodSeconds: 130
  {{- if $.root.Values.gpu }}
  {{- include "antiphon.tolerations" $.root | nindent 2 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- if not $.job }}
          antiphon/agent: {{ $.number | quote }}
          {{- end }}
          {{- include "antiphon.selector" "agent" | nindent 10 }}
  containers:
    - name: generation
      image: {{ include "antiphon.engineImage" $ }}
      imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
      args:
        - serve
        - generation
        {{- if $.root.Values.tls }}
        - --tls-cert=/etc/tls/tls.crt
        - --tls-key=/etc/tls/tls.key
        - --tls-client-ca=/etc/tls/ca.crt
        {{- else }}
        - --insecure
        {{- end }}
        - --model=$(MODEL)
        - --agent=$(AGENT)
        - --threads=$(THREADS)
        - --instance-id=$(POD_NAME)
        - --host=0.0.0.0
        - --port=50051
        - --health-port=50052
        - --metrics-host=0.0.0.0
        - --metrics-port=9464
        - --grace-seconds=120
        - --drain-seconds=5
        - --log-format=json
        {{- if eq $engine "tgi" }}
        - --engine=tgi
        - --engine-command=$(ENGINE_COMMAND)
        - --engine-start-timeout=1800
        - --restart=stop-first
        - --work-folder=/weights
        {{- else if eq $engine "vllm" }}
        - --engine=vllm
        - --engine-set=gpu_memory_utilization=0.85
        {{- end }}
      env:
        - name: MODEL
          value: {{ $.agent.model }}
        - name: AGENT
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['{{ ternary "jobset.sigs.k8s.io/job-index" "antiphon/agent" (default false $.job) }}']
        - name: THREADS
          valueFrom:
            resourceFieldRef:
              resource: requests.cpu
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- if $.root.Values.modelCache.enabled }}
        - name: HF_HUB_OFFLINE
          value: "1"
        {{- end }}
        {{- if eq $engine "tgi" }}
        - name: ENGINE_COMMAND
          value: >-
            text-generation-launcher --model-id {model} --port {port} --hostname 127.0.0.1
            --max-top-n-tokens 64
        {{- end }}
      ports: {{- include "antiphon.ports" $.root | nindent 8 }}
      startupProbe:
        grpc:
          port: 50052
        periodSeconds: 5
        failureThreshold: 360
      readinessProbe:
        grpc:
          port: 50052
          service: antiphon.v1.GenerationService
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        grpc:
          port: 50052
        periodSeconds: 20
        timeoutSeconds: 10
        failureThreshold: 3
      resources:
        {{- if $.root.Values.gpu }}
        {{- include "antiphon.gpu" 1 | nindent 8 }}
        {{- else }}
        requests:
          cpu: "1"
          memory: 2Gi
          ephemeral-storage: 2Gi
        limits:
          memory: 4Gi
          ephemeral-storage: 20Gi
        {{- end }}
      {{- include "antiphon.container" $.root | nindent 6 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: models
          mountPath: /models
          {{- if $.root.Values.modelCache.enabled }}
          readOnly: true
          {{- end }}
        {{- if $.root.Values.tls }}
        - name: tls
          mountPath: /etc/tls
          readOnly: true
        {{- end }}
        {{- if eq $engine "tgi" }}
        - name: weights
          mountPath: /weights
        {{- end }}
        {{- if ne $engine "transformers" }}
        - name: shared-memory
          mountPath: /dev/shm
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- include "antiphon.models" $.root | nindent 4 }}
    {{- if $.root.Values.tls }}
    - name: tls
      secret:
        secretName: agent-tls
    {{- end }}
    {{- if eq $engine "tgi" }}
    - name: weights
      emptyDir:
        medium: Memory
        sizeLimit: 32Gi
    {{- end }}
    {{- if ne $engine "transformers" }}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ ternary "2Gi" "40Gi" (eq $engine "tgi") }}
    {{- end }}
{{- end }}

{{/* Its image: that of its engine. */}}
{{- define "antiphon.engineImage" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- $engine := .agent.engine | default "transformers" -}}
{{- if eq $engine "tgi" -}}
{{ $image.repository }}/engine:{{ $tag }}-tgi
{{- else if eq $engine "vllm" -}}
{{ $image.repository }}/vllm:{{ $tag }}
{{- else -}}
{{ include "antiphon.image" (list .root "generation") }}
{{- end }}
{{- end }}
