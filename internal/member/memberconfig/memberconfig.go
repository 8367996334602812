// Package memberconfig is the file that tells a member agent who it is; package contextualization writes it, package member
// reads it. It is apart from both so that neither end's dependencies burden the other.
package memberconfig

import "net/netip"

// Path is where a member finds the file, Socket the node agent's socket when the file describes no other link. RankLibrary is the library
// that ranks of Open MPI are started with in members that share memory (internal/memberbin/ucx). SerialPort is the name of the virtio-serial
// port that leads to the node agent from a virtual machine.
const (
	Path        = "/etc/nearmetal/member.json"
	Socket      = "/run/nearmetal/agent.sock"
	RankLibrary = "/run/nearmetal-ucx.so"
	SerialPort  = "nearmetal.agent"
)

// Slurm, in members whose environment carries it: its configuration, which the member agent acts on, and munge's key.
const (
	SlurmPath    = "/etc/slurm/slurm.conf"
	MungeKeyPath = "/etc/nearmetal/munge.key"
	// SlurmState is where slurmctld finds its state: in its working directory, which the member agent gives it.
	SlurmState = "/proc/self/cwd"
	// SlurmGPUs and a number from 0 on stand for the member's GPUs, in the order in which CUDA has them there. The member agent makes them.
	SlurmGPUs = "/run/slurm/gpu"
)

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
	// Link is how the node agent is reached; nil: by Socket.
	Link *Link `json:"link,omitempty"`
}

// LinkKind is what connects a member to its node agent.
type LinkKind string

// The kinds of links.
const (
	LinkUnix  LinkKind = "unix"  // a Unix socket: containers
	LinkVsock LinkKind = "vsock" // a socket between a host and its virtual machines
	// LinkSerial is a virtio-serial port: virtual machines, also on hosts without vhost-vsock.
	LinkSerial LinkKind = "serial"
	LinkTLS    LinkKind = "tls" // mutual TLS over TCP: machines that the node agent is not on
)

// Link describes a link. See package memberlink.
type Link struct {
	Kind LinkKind `json:"kind"`
	// Address is a path (unix), CID:PORT (vsock), the name of a virtio-serial port (serial) or HOST:PORT (tls).
	Address string `json:"address"`
	// Node is the name in the node agent's certificate. Certificate, Key and Authority are paths of PEM files: the member's own, and
	// of those who certify node agents. All four are for tls only.
	Node        string `json:"node,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	Authority   string `json:"authority,omitempty"`
}

// User is the account that runs the jobs.
type User struct {
	Name  string `json:"name"`
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell"`
}
