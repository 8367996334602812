package api

import "time"

// DefaultProject is what clusters belong to when nobody says otherwise. It always exists.
const DefaultProject = "default"

// Role is what the bearer of a token may do.
type Role string

// The roles.
const (
	RoleAdmin  Role = "admin"  // everything, in every project
	RoleMember Role = "member" // everything in one project but its quota
	RoleViewer Role = "viewer" // reads one project
	RoleAgent  Role = "agent"  // opens the agents' stream and nothing else
)

// Quota bounds what the clusters of a project may hold at once; 0 is no limit.
type Quota struct {
	Cores    int   `json:"cores,omitempty"`
	Memory   Bytes `json:"memory,omitempty"`
	Members  int   `json:"members,omitempty"`
	Clusters int   `json:"clusters,omitempty"`
}

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

// ProjectSettings is what administrators may change of a project. As the body of a PATCH it is a merge patch (RFC 7396) of it.
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
	// Used is what its clusters hold now, in the units of the quota.
	Used Quota `json:"used"`
}

// TokenRequest is the body of a token's creation.
type TokenRequest struct {
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
	// ValidFor is its life; 0: until it is revoked.
	ValidFor Duration `json:"valid_for,omitempty"`
}

// TokenInfo is a token as it is stored and listed; the secret is not among it.
type TokenInfo struct {
	ID      string `json:"id"`
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
	// Node is the only node that a token of role agent is for, which was made for one boot of it; empty: for any.
	Node string `json:"node,omitempty"`
	// SHA256 is the hash of the secret, in hexadecimal; it is stored and never shown.
	SHA256    string     `json:"sha256,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// NewToken is the answer to a token's creation, the only time its secret is told.
type NewToken struct {
	TokenInfo
	// Token is the whole content of a token file, one line.
	Token string `json:"token"`
}

// Identity is what a server knows of who asks.
type Identity struct {
	User    string `json:"user"`
	Project string `json:"project,omitempty"`
	Role    Role   `json:"role"`
}
