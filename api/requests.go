package api

import "time"

// ScaleRequest is the body of a scale. Either Size is given, or Remove.
type ScaleRequest struct {
	// Group is the group to scale; it may be left away when the cluster has one group only.
	Group string `json:"group,omitempty"`
	// Size is the number of members the group is to have, at least 1. Growing keeps names and ranks; shrinking releases the highest
	// ranks first.
	Size int `json:"size,omitempty"`
	// Remove names members to release instead. Rank 0, which carries out the cluster's jobs, can't be named.
	Remove []string `json:"remove,omitempty"`
	// Queue lets new members wait for room; without it a scale-up that does not fit now is refused.
	Queue bool `json:"queue,omitempty"`
}

// MigrateRequest is the body of a migrate: members of a cluster that are to move to other nodes with their memory.
type MigrateRequest struct {
	// Members are names of members; none: all that are on other nodes than To.
	Members []string `json:"members,omitempty"`
	// To is the node where they are to go on; empty: for each, any other than its own.
	To string `json:"to,omitempty"`
	// Offline saves them, carries their state and restores it. Without it they run while they move, and stand still for a moment only.
	Offline bool `json:"offline,omitempty"`
	// Bandwidth bounds what the move of a running member takes of the network, in bytes per second; 0: no limit.
	Bandwidth Bytes `json:"bandwidth,omitempty"`
	// Downtime is how long a running member should stand still at most; it defaults to 300ms.
	Downtime Duration `json:"downtime,omitempty"`
}

// RebootRequest is the body of a reboot: members of a cluster that are to boot again where they are.
type RebootRequest struct {
	// Members are names of members; none: all of the cluster.
	Members []string `json:"members,omitempty"`
	// Hard resets the members. Without it, their systems are asked to shut down, and are reset only after 30 seconds.
	Hard bool `json:"hard,omitempty"`
}

// ResizeRequest is the body of a resize: the new size of each member of a group. Fields that are omitted stay as they are.
type ResizeRequest struct {
	// Group is the group to resize; it may be omitted when the cluster has one group only.
	Group string `json:"group,omitempty"`
	// Cores and Memory are what each member is to have.
	Cores  int   `json:"cores,omitempty"`
	Memory Bytes `json:"memory,omitempty"`
	// Disk is the size of each member's private disk. A disk can only grow.
	Disk Bytes `json:"disk,omitempty"`
}

// ExtendRequest is the body of an extend.
type ExtendRequest struct {
	// TimeLimit is the new limit, counted from when the cluster was placed; it must be longer than the present one.
	TimeLimit Duration `json:"time_limit"`
}

// LabelsRequest is the body of a change of labels: those with a value are set, those with an empty value are removed.
type LabelsRequest struct {
	Labels map[string]string `json:"labels"`
}

// MergePatch is a JSON merge patch (RFC 7396): the fields to change by their JSON names, each with its new value, nil to reset it, or a MergePatch of
// the mapping that it is.
type MergePatch map[string]any

// PlanStep is one change that an apply makes, or would make.
type PlanStep struct {
	// Action is "create", "change", "add", "remove" or "keep".
	Action string `json:"action"`
	// Path is what changes: "groups[compute].size". From and To are its values as text, empty where there is none.
	Path string `json:"path"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Message says for people what it does: "2 members are released: compute-6, compute-7".
	Message string `json:"message,omitempty"`
}

// ApplyResult is the answer to an apply.
type ApplyResult struct {
	Steps []PlanStep `json:"steps"`
	// Applied is false for a dry run and when there was nothing to change.
	Applied bool `json:"applied"`
	// Cluster is the cluster after it; nil for a dry run of one that does not exist.
	Cluster *Cluster `json:"cluster,omitempty"`
	// Machines say, for a dry run of a new cluster of whole machines, whether each machine would fit, in the order in which they would be taken.
	Machines []MachineFit `json:"machines,omitempty"`
}

// Explanation tells why a cluster is where it is.
type Explanation struct {
	Cluster string       `json:"cluster"`
	Phase   ClusterPhase `json:"phase"`
	// Waiting are the requests of the cluster that wait for room: its creation, a scale-up, replacements.
	Waiting []Waiting `json:"waiting"`
	// Machines say, for groups of whole machines, why members have the machines that they have, and which others fit, in the order in which they would
	// be taken.
	Machines []MachineFit `json:"machines,omitempty"`
	// Data tells, for groups with datasets, which nodes have how much of them: a group goes to nodes that have all, where these have room.
	Data []DataHeld `json:"data,omitempty"`
	// Caches tells, for datasets that members read through the cache of their node, what became of what they read.
	Caches []DatasetCache `json:"caches,omitempty"`
	// DataChoices are the ways in which nodes could have the datasets of groups, with what each is predicted to take: nodes with members of the group,
	// and the quickest of the others. DataOutcomes are what came of the predictions about nodes with members.
	DataChoices []DataChoice `json:"data_choices,omitempty"`
	// DataDecisions are what was decided of datasets whose ways groups leave open, with all that there was to choose from when members got their places.
	DataDecisions []DataChoice `json:"data_decisions,omitempty"`
	// DataReads are the fractions of datasets that members were seen to read, by the name of the dataset.
	DataReads    map[string]DataReads `json:"data_reads,omitempty"`
	DataOutcomes []DataOutcome        `json:"data_outcomes,omitempty"`
	// GPUs are the remote GPUs of members, with why each was chosen.
	GPUs []DeviceUse `json:"gpus,omitempty"`
	// Message is the whole of it in a few sentences for people.
	Message string `json:"message"`
}

// MachineFit tells of one machine whether a member of a group that takes it whole can have it.
type MachineFit struct {
	Group string `json:"group"`
	Node  string `json:"node"`
	// Member has the machine; empty: none of this cluster does.
	Member string `json:"member,omitempty"`
	Fits   bool   `json:"fits"`
	// Reason is what speaks for the machine, or what keeps it from being taken.
	Reason string `json:"reason"`
}

// Waiting is a request that waits for room.
type Waiting struct {
	Cluster string `json:"cluster"`
	Project string `json:"project"`
	User    string `json:"user,omitempty"`
	// Kind is "create", "scale", "heal", "spare" or "restore".
	Kind    string `json:"kind"`
	Members int    `json:"members"`
	Cores   int    `json:"cores"`
	// Position is its place in the queue, 1 for the head; replacements go before all others and have none (0).
	Position int `json:"position"`
	// Constraint is what binds ("cores", "quota", "behind the head", ...), Reason says it for people.
	Constraint string `json:"constraint"`
	Reason     string `json:"reason"`
	// Earliest is when it could start at the latest if nothing changes but time limits that end; nil when that is not known.
	Earliest *time.Time `json:"earliest,omitempty"`
	Since    time.Time  `json:"since"`
	Priority int        `json:"priority"`
	// ShareUsed is the decayed usage of its project over the project's share, in core-seconds a share: lower goes first.
	ShareUsed float64 `json:"share_used"`
}

// CertificateRequest asks for a short-lived SSH user certificate.
type CertificateRequest struct {
	// PublicKey is in the format of authorized_keys (sshd(8)).
	PublicKey string `json:"public_key"`
}

// Certificate is what an SSH client needs to reach the members of a cluster.
type Certificate struct {
	// Certificate is in OpenSSH's format, one line; ValidUntil is when no new login is possible with it.
	Certificate string    `json:"certificate"`
	ValidUntil  time.Time `json:"valid_until"`
	// KnownHosts is a known_hosts line that trusts the cluster's authority for its members (sshd(8)).
	KnownHosts string `json:"known_hosts"`
	// User is the account to log in to.
	User string `json:"user"`
}

// ConsoleRequest says how to attach to a member's serial console.
type ConsoleRequest struct {
	// Write: its caller types. One does at a time; Force takes over from another.
	Write bool `json:"write,omitempty"`
	Force bool `json:"force,omitempty"`
	// KeptOnly ends after what is kept of what was printed.
	KeptOnly bool `json:"kept_only,omitempty"`
	// By names who asks, for others who want to type.
	By string `json:"by,omitempty"`
}
