package api

import "time"

// DefaultProject is the project of clusters that name no other. It always exists.
const DefaultProject = "default"

// Role is the set of rights of a token.
type Role string

// The roles.
const (
	RoleAdmin  Role = "admin"  // everything, in every project
	RoleMember Role = "member" // everything in one project but its quota
	RoleViewer Role = "viewer" // reads one project
	RoleAgent  Role = "agent"  // node agents, by their certificates; no token has it
)

// Verb is a class of operations of the API. Every operation belongs to one.
type Verb string

// The verbs.
const (
	VerbRead       Verb = "read"       // see things
	VerbRun        Verb = "run"        // use clusters: submit and cancel jobs, reach members by SSH, copies and tunnels
	VerbChange     Verb = "change"     // create, change and delete clusters
	VerbAdminister Verb = "administer" // what is the site's: projects, tokens, nodes, environments, the audit log
)

// Verbs returns all verbs.
func Verbs() []Verb { return []Verb{VerbRead, VerbRun, VerbChange, VerbAdminister} }

// Limits restrict a token to less than its role allows.
type Limits struct {
	// Verbs are the verbs that the token allows; read is always among them. Empty: all verbs that the role allows.
	Verbs []Verb `json:"verbs,omitempty"`
	// Clusters are names of clusters of the token's project, with * for any characters. Empty: all clusters. Clusters with other names do not
	// exist for the token.
	Clusters []string `json:"clusters,omitempty"`
}

// Quota bounds what the clusters of a project may hold at once; 0 is no limit.
type Quota struct {
	Cores  int   `json:"cores,omitempty"`
	Memory Bytes `json:"memory,omitempty"`
	// Disk bounds the private disks of members.
	Disk Bytes `json:"disk,omitempty"`
	// Storage bounds what volumes and their snapshots hold.
	Storage Bytes `json:"storage,omitempty"`
	// Datasets bound what nodes hold of its datasets, in replicas and caches, when more is asked for.
	Datasets Bytes `json:"datasets,omitempty"`
	Members  int   `json:"members,omitempty"`
	Clusters int   `json:"clusters,omitempty"`
	// Addresses bound the floating addresses that the project has allocated.
	Addresses int `json:"addresses,omitempty"`
	// EnergyJoules bounds what its members used in the last 30 days, measured and modelled. Once that is reached, the project gets no more room; what runs goes on.
	EnergyJoules int64 `json:"energy_joules,omitempty"`
	// Devices bound counters of devices, by class and counter, such as "gpu/slices".
	Devices map[string]int64 `json:"devices,omitempty"`
}

// EnergyWindow is how far back the quota of energy counts.
const EnergyWindow = 30 * 24 * time.Hour

// Project owns clusters. A token of a project sees nothing of another.
type Project struct {
	// Name is a DNS label.
	Name        string `json:"name"`
	Description string `json:"description"`
	Quota       Quota  `json:"quota"`
	// Shares is its weight in the fair share, at least 1; it defaults to 1.
	Shares    int       `json:"shares"`
	CreatedAt time.Time `json:"created_at"`
}

// ProjectSettings are the settings of a project that administrators may change. As the body of a PATCH they are a merge patch (RFC 7396).
type ProjectSettings struct {
	Description string `json:"description"`
	Quota       Quota  `json:"quota"`
	Shares      int    `json:"shares"`
}

// ProjectRequest is the body of a project's creation.
type ProjectRequest struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Quota       Quota  `json:"quota,omitzero"`
	Shares      int    `json:"shares,omitempty"`
}

// ProjectUpdate is the body of a PUT: a project as it was read, with changed settings. All settings must be given. The other fields may be omitted;
// they can't be changed.
type ProjectUpdate struct {
	ProjectSettings
	// Name, if given, must be the project's.
	Name      string    `json:"name,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	Used      Quota     `json:"used,omitzero"`
}

// ProjectStatus is a project as the API shows it.
type ProjectStatus struct {
	Project
	// Used is the amount that its clusters hold now, in the units of the quota.
	Used Quota `json:"used"`
}

// The life of a token: by default, and at most.
const (
	DefaultTokenLife = Duration(90 * 24 * time.Hour)
	MaxTokenLife     = Duration(3650 * 24 * time.Hour)
)

// TokenEndsHeader is the header of answers to a request with a token that ends: when it does (RFC 3339).
const TokenEndsHeader = "Nearmetal-Token-Ends"

// TokenRequest is the body of a token's creation.
type TokenRequest struct {
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
	// ValidFor is its life; omitted: DefaultTokenLife.
	ValidFor Duration `json:"valid_for,omitempty"`
	Limits
}

// TokenInfo is a token as it is stored and listed; the secret is not among it.
type TokenInfo struct {
	ID      string `json:"id"`
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
	// SHA256 is the hash of the secret, in hexadecimal; it is stored and never shown.
	SHA256    string     `json:"sha256,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// LastUsedAt is the time of the token's last use, and LastUsedFrom the address that the request came from, or "socket". They are exact to some
	// minutes; nil: it was not used yet.
	LastUsedAt   *time.Time `json:"last_used_at,omitempty"`
	LastUsedFrom string     `json:"last_used_from,omitempty"`
	Limits
}

// NewToken is the answer to a token's creation, the only answer with its secret.
type NewToken struct {
	TokenInfo
	// Token is the whole content of a token file, one line.
	Token string `json:"token"`
}

// Identity is a caller's identity as the server knows it.
type Identity struct {
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
	// ExpiresAt is the end of the token; nil: it has no end, like the Unix socket and the token in the server's directory.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Limits
}
