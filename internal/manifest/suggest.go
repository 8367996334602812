package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// otherWords are words people use for fields that are called otherwise here.
var otherWords = map[string]string{
	"count": "size", "replicas": "size", "nodes": "size", "members": "size",
	"cpus": "cores", "cpu": "cores", "vcpus": "cores", "ram": "memory", "mem": "memory", "memory_bytes": "memory",
	"env": "environment", "image": "environment", "driver": "stack", "selector": "node_selector", "cmd": "command",
	"walltime": "time_limit", "duration": "time_limit", "ttl": "time_limit", "limit": "time_limit", "namespace": "project", "account": "project",
	"tenant": "project", "healthchecks": "checks", "health_checks": "checks", "probes": "checks", "period": "interval", "every": "interval",
	"retries": "failures", "threshold": "failures", "signal": "failure_signal", "nics": "networks", "interfaces": "networks", "restart": "requeue",
	"cpu_type": "cpu_model", "processor": "cpu_model", "disk_size": "disk", "storage": "disk", "disks": "local_disks", "dataset": "datasets", "data": "datasets", "hugepages": "huge_pages", "cloud_init": "user_data", "cloud_config": "user_data",
}

// unknownField says that a field does not exist and which one was perhaps meant.
func unknownField(key string, known map[string]reflect.Value) string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	if s := Closest(key, names); s != "" {
		return fmt.Sprintf("is not a field; did you mean %q?", s)
	}
	if s := otherWords[strings.ToLower(key)]; slices.Contains(names, s) {
		return fmt.Sprintf("is not a field; did you mean %q?", s)
	}
	return "is not a field; known fields: " + strings.Join(names, ", ")
}

// Closest returns the name nearest to a mistyped one, or "" when none is near.
func Closest(mistyped string, names []string) string {
	best, bestDistance := "", 1+max(1, len(mistyped)/3)
	typed := strings.ReplaceAll(strings.ToLower(mistyped), "-", "_")
	for _, name := range names {
		if d := distance(typed, strings.ReplaceAll(strings.ToLower(name), "-", "_")); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
