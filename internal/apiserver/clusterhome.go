package apiserver

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// homeText says what kind of home a cluster has.
func homeText(spec api.ClusterSpec) string { return cmp.Or(spec.Home.Kind, api.HomeOfCluster) }

// attachmentsText lists the volumes of a cluster.
func attachmentsText(spec api.ClusterSpec) string {
	if len(spec.Volumes) == 0 {
		return "none"
	}
	texts := make([]string, len(spec.Volumes))
	for i, v := range spec.Volumes {
		texts[i] = fmt.Sprintf("%s at %s", v.Name, v.MountPath())
		if v.ReadOnly {
			texts[i] += " (read-only)"
		}
	}
	return strings.Join(texts, ", ")
}

// keepsHome reports whether a cluster's home outlives it, or there is none to speak of.
func keepsHome(spec *api.ClusterSpec) bool {
	if spec.Home.Kind == api.HomeOfUser || spec.Home.Kind == api.HomeNone {
		return true
	}
	for _, v := range spec.Volumes {
		if v.MountPath() == "/home" {
			return true
		}
	}
	return false
}
