{{/* The learner's pod: (dict "root" $ "rank" ""), or one of several: "rank" is "lead" or "member". */}}
{{- define "antiphon.learnerPod" -}}
{{- $rank := .rank -}}
{{- with .root -}}
metadata:
  labels:
    {{- if or (not .Values.modelCache.enabled) .Values.remoteReward .Values.checkpoints.bucket }}
    antiphon/internet: "true"
    {{- end }}
    {{- include "antiphon.selector" (ternary "member" "learner" (eq $rank "member")) | nindent 4 }}
spec:
  restartPolicy: Never
  serviceAccountName: learner
  {{- include "antiphon.pod" . | nindent 2 }}
  terminationGracePeriodSeconds: 600
  {{- if .Values.gpu }}
  {{- include "antiphon.tolerations" . | nindent 2 }}
  {{- end }}
  {{- if .Values.checkpoints.bucket }}
  initContainers:
    - name: fetch-runs
      {{- include "antiphon.rclone" . | nindent 6 }}
      args: [copy, "$(BUCKET)", /runs]
    - name: copy-runs
      {{- include "antiphon.rclone" . | nindent 6 }}
      restartPolicy: Always
      command:
        - /bin/sh
        - -c
        - |
          copy() { rclone sync --exclude '.*/**' --exclude '.*' /runs "$BUCKET"; }
          trap 'copy; exit' TERM
          while :; do sleep 60 & wait $!; copy; done
  {{- end }}
  containers:
    - name: learner
      image: {{ include "antiphon.image" (list . "learner") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      workingDir: /task
      {{- if $rank }}
      command: [torchrun]
      args:
        - --nnodes={{ .Values.learner.pods }}
        - --nproc-per-node={{ .Values.learner.processes }}
        - --max-restarts=0
        - --shutdown-timeout=570
        - --rdzv-backend=c10d
        - --rdzv-id=run
        - --rdzv-endpoint=learner-lead-0-0.ranks:29500
        - --rdzv-conf=is_host={{ eq $rank "lead" }},join_timeout=1800
        - --local-addr=learner-{{ ternary "lead-0" "member-$(MEMBER)" (eq $rank "lead") }}-0.ranks
        - -m
        - antiphon.learner
        - /etc/antiphon/run.toml
        - --resume=latest
      {{- else }}
      args:
        - train
        - /etc/antiphon/run.toml
        - --resume=latest
      {{- end }}
      env:
        {{- if eq $rank "member" }}
        - name: MEMBER
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['jobset.sigs.k8s.io/job-index']
        {{- end }}
        - name: ANTIPHON_RUN__DIRECTORY
          value: /runs
        - name: ANTIPHON_RUN__LOG_FORMAT
          value: json
        - name: ANTIPHON_RUN__LOG_LEVEL
          value: info
        - name: ANTIPHON_RUN__THREADS
          valueFrom:
            resourceFieldRef:
              resource: requests.cpu
        - name: ANTIPHON_MAGRPO__START_TIMEOUT
          value: "1800"
        - name: ANTIPHON_MAGRPO__REPLICAS_TIMEOUT
          value: "1800"
        - name: ANTIPHON_SERVER__INSECURE
          value: {{ not .Values.tls | quote }}
        - name: ANTIPHON_SERVER__INSTANCE_ID
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: ANTIPHON_SERVER__HOST
          value: 0.0.0.0
        - name: ANTIPHON_SERVER__PORT
          value: "50051"
        - name: ANTIPHON_SERVER__HEALTH_PORT
          value: "50052"
        - name: ANTIPHON_SERVER__METRICS_HOST
          value: 0.0.0.0
        - name: ANTIPHON_SERVER__METRICS_PORT
          value: "9464"
        {{- if .Values.tls }}
        - name: ANTIPHON_CREDENTIALS__TLS__CA
          value: /etc/tls/ca.crt
        - name: ANTIPHON_CREDENTIALS__TLS__CERTIFICATE
          value: /etc/tls/tls.crt
        - name: ANTIPHON_CREDENTIALS__TLS__KEY
          value: /etc/tls/tls.key
        - name: ANTIPHON_SERVER__TLS_CERT
          value: /etc/tls/tls.crt
        - name: ANTIPHON_SERVER__TLS_KEY
          value: /etc/tls/tls.key
        - name: ANTIPHON_SERVER__TLS_CLIENT_CA
          value: /etc/tls/ca.crt
        {{- end }}
        {{- if .Values.modelCache.enabled }}
        - name: HF_HUB_OFFLINE
          value: "1"
        - name: HF_DATASETS_CACHE
          value: /tmp/datasets
        {{- end }}
        {{- with .Values.remoteReward }}
        - name: ANTIPHON_REWARD__ADDRESS
          value: '{address = "{{ . }}", token_file = "/etc/reward/token", tls = {}}'
        {{- end }}
        {{- if .Values.jobSet }}
        {{- range $number, $_ := .Values.agents }}
        - name: ANTIPHON_AGENTS__{{ $number }}__ADDRESSES
          value: '["run-agent-{{ $number }}-0.run:50051"]'
        {{- end }}
        {{- end }}
      {{- if ne $rank "member" }}
      ports: {{- include "antiphon.ports" . | nindent 8 }}
      startupProbe:
        grpc:
          port: 50052
        periodSeconds: 5
        failureThreshold: 360
      readinessProbe:
        grpc:
          port: 50052
          service: antiphon.v1.LearnerService
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        grpc:
          port: 50052
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 6
      {{- end }}
      resources:
        {{- if .Values.gpu }}
        {{- include "antiphon.gpu" .Values.learner.processes | nindent 8 }}
        {{- else }}
        requests:
          cpu: "1"
          memory: 6Gi
          ephemeral-storage: 4Gi
        limits:
          memory: 12Gi
          ephemeral-storage: 40Gi
        {{- end }}
      {{- include "antiphon.container" . | nindent 6 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: models
          mountPath: /models
          {{- if .Values.modelCache.enabled }}
          readOnly: true
          {{- end }}
        - name: runs
          mountPath: /runs
        - name: run
          mountPath: /etc/antiphon
          readOnly: true
        - name: task
          mountPath: /task
          readOnly: true
        {{- if .Values.tls }}
        - name: tls
          mountPath: /etc/tls
          readOnly: true
        {{- end }}
        {{- if .Values.remoteReward }}
        - name: reward-token
          mountPath: /etc/reward
          readOnly: true
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- include "antiphon.models" . | nindent 4 }}
    - name: runs
      {{- if .Values.checkpoints.enabled }}
      persistentVolumeClaim:
        claimName: runs
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: run
      configMap:
        name: {{ include "antiphon.runName" . }}
    - name: task
      configMap:
        name: {{ include "antiphon.taskName" . }}
    {{- if .Values.tls }}
    - name: tls
      secret:
        secretName: learner-tls
    {{- end }}
    {{- if .Values.remoteReward }}
    - name: reward-token
      secret:
        secretName: reward-token
    {{- end }}
    {{- if .Values.checkpoints.bucket }}
    - name: rclone
      secret:
        secretName: rclone
    {{- end }}
{{- end }}
{{- end }}

{{/* What both containers have that copy the run folder from and to a bucket. */}}
{{- define "antiphon.rclone" -}}
image: docker.io/rclone/rclone:1.71.2
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: BUCKET
    value: {{ .Values.checkpoints.bucket }}
  - name: RCLONE_CONFIG
    value: /etc/rclone/rclone.conf
  - name: RCLONE_CACHE_DIR
    value: /tmp/rclone
resources:
  requests:
    cpu: 100m
    memory: 128Mi
    ephemeral-storage: 64Mi
  limits:
    memory: 512Mi
    ephemeral-storage: 1Gi
{{- include "antiphon.container" . | nindent 0 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  - name: runs
    mountPath: /runs
  - name: rclone
    mountPath: /etc/rclone
    readOnly: true
{{- end }}
