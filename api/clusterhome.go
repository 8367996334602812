package api

import "strings"

// clusterHomePrefix begins the names of volumes that are homes of clusters.
const clusterHomePrefix = "clusterhome-"

// ClusterHomeName returns the name within its project of the volume that is a cluster's own home. It has the cluster's UID: the next cluster of the
// same name gets another home, also while this one is still being purged.
func ClusterHomeName(clusterUID string) string { return clusterHomePrefix + clusterUID }

// IsClusterHomeName reports whether a name within a project is kept for homes of clusters.
func IsClusterHomeName(name string) bool { return strings.HasPrefix(name, clusterHomePrefix) }

// Bounded reports whether the home is the cluster's own with a size: a volume that is made and deleted with the cluster.
func (h ClusterHome) Bounded() bool {
	return (h.Kind == "" || h.Kind == HomeOfCluster) && h.Size > 0
}
