{{- define "headrace.name" -}}
{{ eq .Release.Name .Chart.Name | ternary .Chart.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "headrace.claim" -}}
{{ .Values.state.claim | default (printf "%s-state" (include "headrace.name" .)) }}
{{- end }}

{{- /* What pods of the image may do: the rules of the stack's services. */ -}}
{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# Without it the files of a large volume are given to the group at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Where the file of a setting lies, of the dict {name, file}: the folder of its Secret, so that keys do not collide. */ -}}
{{- define "headrace.secretPath" -}}
/run/secrets/{{ .file.secret }}/{{ .file.key }}
{{- end }}

{{- /* HEADRACE_SPARK_CONF: the driver's address is its pod's, which Kubernetes puts in. */ -}}
{{- define "headrace.sparkConf" -}}
{{- $spark := .Values.spark -}}
{{- $given := dict
  "spark.cores.max" (toString $spark.cores)
  "spark.executor.cores" (toString $spark.executorCores)
  "spark.executor.memory" $spark.executorMemory
  "spark.driver.host" "$(POD_IP)"
  "spark.driver.bindAddress" "0.0.0.0"
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.container.image" .Values.image
  "spark.kubernetes.container.image.pullPolicy" .Values.imagePullPolicy
  "spark.kubernetes.executor.podTemplateFile" "/etc/headrace/executor.yaml"
  "spark.kubernetes.authenticate.executor.serviceAccountName" (printf "%s-executor" (include "headrace.name" .))
  "spark.kubernetes.memoryOverheadFactor" $spark.memoryOverheadFactor
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.driver.reusePersistentVolumeClaim" "false"
-}}
{{- toJson (merge (dict) $spark.conf $given) -}}
{{- end }}

{{- define "headrace.environment" -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: HEADRACE_STATE, value: /state}
- {name: HEADRACE_RUNNER, value: service}
- {name: HEADRACE_BACKEND, value: {{ .Values.backend }}}
- {name: HEADRACE_CONSOLE, value: {{ .Values.console.url | quote }}}
- {name: HEADRACE_CONSOLE_PASSWORDS, value: /state/console/passwords}
{{- if .Values.datasets.claim }}
- {name: HEADRACE_DATASETS, value: /datasets}
{{- end }}
{{- if .Values.files.claim }}
- {name: HEADRACE_FILES, value: /files}
{{- end }}
{{- if .Values.spark.master }}
- {name: HEADRACE_SPARK_MASTER, value: {{ .Values.spark.master | quote }}}
- {name: HEADRACE_SPARK_CONF, value: {{ include "headrace.sparkConf" . | quote }}}
{{- end }}
{{- range $name, $file := .Values.secretFiles }}
- {name: {{ $name }}, value: {{ include "headrace.secretPath" (dict "name" $name "file" $file) | quote }}}
{{- end }}
{{- range $name, $value := merge (dict) .Values.settings .Values.environment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "headrace.mounts" -}}
- {name: state, mountPath: /state}
# JVMs load the native libraries that they unpack here.
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/headrace}
{{- if .Values.datasets.claim }}
- {name: datasets, mountPath: /datasets, readOnly: true}
{{- end }}
{{- if .Values.files.claim }}
- {name: files, mountPath: /files, readOnly: true}
{{- end }}
{{- if .Values.spark.master }}
- {name: executor, mountPath: /etc/headrace, readOnly: true}
{{- end }}
{{- range $name := include "headrace.secrets" .Values.secretFiles | fromJsonArray }}
- {name: secret-{{ $name }}, mountPath: /run/secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}

{{- /* The names of the Secrets of these files, each once. */ -}}
{{- define "headrace.secrets" -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .secret }}{{ end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end }}

{{- /* A volume of a Secret with the keys that settings name, of the dict {secret, files}. */ -}}
{{- define "headrace.secretVolume" -}}
{{- $secret := .secret -}}
{{- $keys := list -}}
{{- range .files }}{{ if eq .secret $secret }}{{ $keys = append $keys .key }}{{ end }}{{ end -}}
- name: secret-{{ $secret }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 288 # 0440
    items:
    {{- range $keys | uniq }}
      - {key: {{ . }}, path: {{ . }}}
    {{- end }}
{{- end }}

{{- /* A container of a host, of the dict {root, name, probe, resources, port}; without port it is the runner. */ -}}
{{- define "headrace.container" -}}
- name: {{ .name }}
  image: {{ .root.Values.image | quote }}
  imagePullPolicy: {{ .root.Values.imagePullPolicy }}
  {{- if .port }}
  command: [headrace, {{ .name }}, --host, 0.0.0.0, --port, {{ .port | quote }}]
  ports: [{name: {{ .name }}, containerPort: {{ .port }}}]
  {{- end }}
  env: {{- include "headrace.environment" .root | nindent 4 }}
  securityContext: {{- include "headrace.containerSecurity" .root | nindent 4 }}
  resources: {{- toYaml .resources | nindent 4 }}
  {{- range $name, $times := dict "startupProbe" (list 5 36) "livenessProbe" (list 10 12) "readinessProbe" (list 10 3) }}
  {{ $name }}:
    {{- toYaml $.probe | nindent 4 }}
    periodSeconds: {{ index $times 0 }}
    timeoutSeconds: 8
    failureThreshold: {{ index $times 1 }}
  {{- end }}
  volumeMounts: {{- include "headrace.mounts" .root | nindent 4 }}
{{- end }}
