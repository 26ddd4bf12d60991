{{- define "lb-agent.name" -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "lb-agent.selector" -}}
app.kubernetes.io/name: lb-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lb-agent.labels" -}}
{{ include "lb-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "lb-agent.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "lb-agent.name" .) }}
{{- end }}

{{- define "lb-agent.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* An address with a port, in brackets where it is IPv6. */}}
{{- define "lb-agent.metricsAddress" -}}
{{- if not .enabled }}{{ else if contains ":" .address }}[{{ .address }}]:{{ .port }}{{ else }}{{ .address }}:{{ .port }}{{ end }}
{{- end }}

{{- /* What the agent reads: the values that the chart knows, and over them what `config` says. */}}
{{- define "lb-agent.config" -}}
{{- $config := dict
  "plane" .Values.plane
  "socketLb" .Values.socketLB
  "setSysctls" .Values.setSysctls
  "bpffs" "/sys/fs/bpf"
  "cgroup" "/host/cgroup"
  "runDir" "/run/lb-agent"
  "healthzBindAddress" (printf "0.0.0.0:%v" .Values.healthz.port)
  "metricsBindAddress" (include "lb-agent.metricsAddress" .Values.metrics)
  "logLevel" .Values.log.level
  "logFormat" .Values.log.format
}}
{{- if .Values.nodePortAddresses }}
{{- $_ := set $config "nodePortAddresses" .Values.nodePortAddresses }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}

{{- /* What the agent may do on the node. */}}
{{- define "lb-agent.securityContext" -}}
{{- $context := dict "runAsUser" 0 "readOnlyRootFilesystem" true }}
{{- if .Values.privileged }}
{{- $_ := set $context "privileged" true }}
{{- else }}
{{- $capabilities := concat (list "NET_ADMIN" "BPF" "PERFMON") .Values.extraCapabilities }}
{{- if eq .Values.socketLB "all" }}
{{- $capabilities = concat $capabilities (list "SYS_PTRACE" "SYS_ADMIN") }}
{{- end }}
{{- $capabilities = uniq $capabilities }}
{{- $_ := set $context "capabilities" (dict "drop" (list "ALL") "add" $capabilities) }}
{{- if not (has "SYS_ADMIN" $capabilities) }}
{{- $_ := set $context "allowPrivilegeEscalation" false }}
{{- end }}
{{- end }}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.securityContext)) }}
{{- end }}

{{- /* Values that exclude each other, each with the way out. */}}
{{- define "lb-agent.check" -}}
{{- if not .Values.apiServer.host }}
{{- fail "apiServer.host is empty: say the address of the API server itself, since the Service `kubernetes` works because of lb-agent (`kubectl cluster-info` shows it)" }}
{{- end }}
{{- if and (eq .Values.plane "ipvs") (not .Values.privileged) }}
{{- fail "plane: ipvs takes privileged: true, since the agent has to write sysctls of IPVS" }}
{{- end }}
{{- if and .Values.setSysctls (not .Values.privileged) }}
{{- fail "setSysctls takes privileged: true, since a container runtime lets nobody else write them" }}
{{- end }}
{{- if .Values.metrics.podMonitor.enabled }}
{{- if not .Values.metrics.enabled }}
{{- fail "metrics.podMonitor.enabled takes metrics.enabled" }}
{{- end }}
{{- if or (hasPrefix "127." .Values.metrics.address) (eq "::1" .Values.metrics.address) }}
{{- fail "metrics.podMonitor.enabled takes a metrics.address that Prometheus reaches, such as 0.0.0.0: this one is for the node alone" }}
{{- end }}
{{- end }}
{{- end }}
