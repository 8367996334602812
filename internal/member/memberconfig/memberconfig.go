// Package memberconfig is the file that tells a member agent who it is; package contextualization writes it, package member
// reads it. It is apart from both so that neither end's dependencies burden the other.
package memberconfig

import "net/netip"

// Path is where a member finds the file.
const Path = "/etc/nearmetal/member.json"

// File is the content of the file, in JSON.
type File struct {
	AssignmentID string     `json:"assignment_id"`
	Cluster      string     `json:"cluster"`
	Member       string     `json:"member"`
	Address      netip.Addr `json:"address"`
	// User runs the jobs.
	User User `json:"user"`
	// Hostfile is what mpirun gets.
	Hostfile string `json:"hostfile"`
	// Env is what every job's environment has, as logins have it.
	Env map[string]string `json:"env"`
}

// User is the account that runs the jobs.
type User struct {
	Name  string `json:"name"`
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell"`
}
