package api

// Kind is a kind of object that changes are reported of.
type Kind string

// The kinds of objects. A node changes with what its agent reports of itself, its drain and its machine, but not with the members on it. An
// environment is one that was built. A network is named by its UID; its ports change with their clusters, and so do those of a
// security group. Tokens, candidates and enrollment tokens are visible to administrators only.
const (
	// KindAddress is a floating address.
	KindAddress   Kind = "address"
	KindBuild     Kind = "build"
	KindCandidate Kind = "candidate"
	KindCluster   Kind = "cluster"
	// KindDataset is a dataset, by its UID. What nodes report of its replicas is no change of it.
	KindDataset     Kind = "dataset"
	KindEnrollToken Kind = "enroll-token"
	KindEnvironment Kind = "environment"
	KindJob         Kind = "job"
	KindNetwork     Kind = "network"
	KindNode        Kind = "node"
	KindProject     Kind = "project"
	// KindSecurityGroup is a security group, by its UID.
	KindSecurityGroup Kind = "security-group"
	KindShape         Kind = "shape"
	KindToken         Kind = "token"
	// KindVolume is a volume, by its UID. It changes with what its node reports of it, too.
	KindVolume Kind = "volume"
)

// Kinds returns all kinds, in order.
func Kinds() []Kind {
	return []Kind{
		KindAddress, KindBuild, KindCandidate, KindCluster, KindDataset, KindEnrollToken, KindEnvironment, KindJob, KindNetwork, KindNode, KindProject, KindSecurityGroup, KindShape,
		KindToken, KindVolume,
	}
}

// ChangeType is the kind of a change of an object.
type ChangeType string

// An object was made or changed, or it is gone.
const (
	ChangePut    ChangeType = "put"
	ChangeDelete ChangeType = "delete"
)

// Change reports that an object has changed: not how, since it may have changed again by the time it is read.
type Change struct {
	Type ChangeType `json:"type"`
	Kind Kind       `json:"kind"`
	// Name is the name or ID by which the object is requested.
	Name string `json:"name"`
	// Project is the project that the object belongs to; empty if it is the site's.
	Project string `json:"project,omitempty"`
	// Revision is that of the stored state in which the change was seen.
	Revision int64 `json:"revision"`
}
