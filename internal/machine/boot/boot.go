// Package boot is what a booting machine and its server say to each other: the kernel's command line, the exchange of the boot token,
// and what the machine reports until its node agent takes over.
//
// It holds types, their encoding, and the making and checking of boot tokens; it opens no connection. The kernel's command line comes over the provisioning
// network, whose word is taken for the server's address and CA pin; from then on everything goes over TLS pinned to that CA, and images are
// verified by digest and signature. Start with Arguments.
package boot

import (
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Arguments are what the kernel's command line tells the boot agent, as nearmetal.KEY=VALUE (see Encode and Parse).
type Arguments struct {
	// Server is HOST:PORT of the boot API over TLS, at the server's address on the provisioning network.
	Server string
	// Pin is the pin of the site's CA (trust.Pin as text).
	Pin string
	// Token is the boot token.
	Token string
	// MAC is of the NIC it boots from.
	MAC string
	// Purpose is why it boots, Manifest what.
	Purpose  api.BootPurpose
	Manifest image.Digest
	// Images is the URL below which blobs are, as Images + HEX; plain HTTP with ranges (RFC 9110, section 14).
	Images string
	// Time is the server's clock when it wrote the arguments: a machine without a clock battery could not verify a certificate. Zero: unknown.
	Time time.Time
	// Disk is a disk or partition to keep the root on instead of RAM, /dev/...; what is on it is overwritten. Empty: RAM.
	Disk string
}

// TokenClaims are what a boot token is bound to; see Seal and Open.
type TokenClaims struct {
	MAC        string          `json:"mac"`
	Machine    string          `json:"machine,omitempty"` // UID; empty for a stranger
	Generation int64           `json:"generation"`
	Purpose    api.BootPurpose `json:"purpose"`
	// Port is where its DHCP request came in: the relay's circuit ID (option 82, RFC 3046), else the server's interface.
	Port      string    `json:"port"`
	ExpiresAt time.Time `json:"expires_at"`
}

// HelloPath and the others are paths of the boot API (HTTPS, JSON bodies, POST). All but HelloPath want the session in the header
// Authorization: Bearer.
const (
	HelloPath  = "/boot/v1/hello"
	StagePath  = "/boot/v1/stage"
	SharePath  = "/boot/v1/share"
	ReportPath = "/boot/v1/report"
	CleanPath  = "/boot/v1/clean"
	// FilesPath, GET: the archive that Welcome.Files names, for the boot of the session alone.
	FilesPath = "/boot/v1/files"
	// AgentBinaryPath, GET: the node agent's binary (application/octet-stream), its digest in Welcome.Agent.
	AgentBinaryPath = "/boot/v1/agent"
)

// Hello is the first word of a booting machine: it exchanges its token. The same token may be exchanged again by the same machine while
// Nonce is the same (a lost answer), never by another one.
type Hello struct {
	Token string `json:"token"`
	// Nonce is made once in this boot.
	Nonce string   `json:"nonce"`
	MACs  []string `json:"macs"`
	// Request is a certificate request (PKCS #10, RFC 2986) in PEM for the key of the node agent.
	Request string `json:"request,omitempty"`
}

// Welcome answers Hello.
type Welcome struct {
	// Session authenticates what follows of this boot.
	Session string `json:"session"`
	// Name is the machine's name and host name; empty for a stranger.
	Name    string          `json:"name"`
	Purpose api.BootPurpose `json:"purpose"`
	// Manifest is the image's manifest and Signature the site's (image.Verify with PublicKey).
	Manifest  []byte `json:"manifest"`
	Signature []byte `json:"signature"`
	PublicKey []byte `json:"public_key"`
	// Peers are nodes that have the image and serve its chunks, URLs like Arguments.Images; empty while few fetch it.
	Peers []string `json:"peers,omitempty"`
	// RateBytesPerSecond bounds the filling of the root in the background; 0: no bound.
	RateBytesPerSecond int64 `json:"rate_bytes_per_second,omitempty"`
	// Agent is the node agent to run; nil for a boot without one.
	Agent *Agent `json:"agent,omitempty"`
	// RootPasswordHash is root's for the console in this boot, as crypt(5) has it.
	RootPasswordHash string `json:"root_password_hash,omitempty"`
	// AuthorizedKeys of root, for SSH.
	AuthorizedKeys []string `json:"authorized_keys,omitempty"`
	// Time is the server's clock: machines without a battery have none.
	Time time.Time `json:"time"`
	// HealthDeadline bounds each health check.
	HealthDeadline time.Duration `json:"health_deadline"`
	// Files are laid into the root before anything runs from it: an archive (package archive) of FilesPath. Nil: there are none.
	Files *image.Blob `json:"files,omitempty"`
	// Clean is what a boot that cleans is to do. Without it nothing is erased.
	Clean *CleanOrder `json:"clean,omitempty"`
}

// CleanOrder is what a boot that cleans is to do.
type CleanOrder struct {
	// DryRun: it reports its plan and erases nothing.
	DryRun bool `json:"dry_run"`
	// WasOff: the machine's power was read as off before this boot.
	WasOff bool `json:"was_off,omitempty"`
	// Variables are the UEFI variables that the machine had when it was first inspected, as NAME-GUID. Nil: not known.
	Variables []string `json:"variables,omitempty"`
	// Disks are those that inspection found: one that is missing can't be called clean.
	Disks []api.Disk `json:"disks,omitempty"`
}

// CleanReport tells how far a cleaning is. It is sent every few seconds, always with all steps; fields are as in api.MachineClean.
type CleanReport struct {
	DryRun     bool            `json:"dry_run,omitempty"`
	Done       bool            `json:"done,omitempty"`
	Bytes      int64           `json:"bytes"`
	TotalBytes int64           `json:"total_bytes"`
	Steps      []api.CleanStep `json:"steps"`
	// ExpectSeconds is how long there may be nothing new to report, because a disk erases itself and says that it takes so long.
	ExpectSeconds float64 `json:"expect_seconds,omitempty"`
	// Hardware is what the machine is made of, with the versions of its firmware, once all steps have ended.
	Hardware *api.Hardware `json:"hardware,omitempty"`
}

// Agent is the node agent a machine runs.
type Agent struct {
	Binary image.Blob `json:"binary"`
	// Gzip is the binary compressed (RFC 1952), a blob of the image server; it is read instead where it is told, and what comes out of it
	// must be Binary: a third of the bytes, for each machine of a storm.
	Gzip *image.Blob `json:"gzip,omitempty"`
	// Certificate answers Hello.Request: the identity ends with the boot.
	Certificate api.NodeCertificate `json:"certificate"`
	Server      string              `json:"server"` // HOST:PORT
	// Labels, Adapters, Passthrough and Generation go to its options, and so does the name of the NIC with the MAC TrunkMAC, if any.
	Labels   map[string]string    `json:"labels,omitempty"`
	TrunkMAC string               `json:"trunk_mac,omitempty"`
	Adapters []api.MachineAdapter `json:"adapters,omitempty"`
	// Passthrough is nil where virtual machines get no GPUs.
	Passthrough *api.MachinePassthrough `json:"passthrough,omitempty"`
	Generation  int64                   `json:"generation"`
}

// StageReport tells that a stage has ended.
type StageReport struct {
	Stage api.BootStage `json:"stage"`
	// AgoSeconds is how long before this report, by the machine's monotonic clock: clocks of machines are not trusted.
	AgoSeconds float64 `json:"ago_seconds"`
	ReadBytes  int64   `json:"read_bytes,omitempty"`
	RootBytes  int64   `json:"root_bytes,omitempty"`
	// PeerBytes of the root came from other machines and were verified; it is told with the last stage.
	PeerBytes int64 `json:"peer_bytes,omitempty"`
	// Local: the root is wholly on the machine, verified.
	Local bool `json:"local,omitempty"`
	// Problem tells why the boot can't go on.
	Problem string `json:"problem,omitempty"`
	// Earlier are the stages told before: what a server heard of them may have gone with it before it was written down.
	Earlier []EarlierStage `json:"earlier,omitempty"`
}

// EarlierStage is a stage that was reported before; its fields are as in StageReport.
type EarlierStage struct {
	Stage      api.BootStage `json:"stage"`
	AgoSeconds float64       `json:"ago_seconds"`
	ReadBytes  int64         `json:"read_bytes,omitempty"`
}

// Sharing tells what a machine gives others of its image while it fetches it, and asks who else does. It is told every few seconds.
type Sharing struct {
	Shares []Share `json:"shares"`
}

// Share is one root or layer.
type Share struct {
	Digest image.Digest `json:"digest"`
	// Port is where its chunks are served, TCP; the address is where the message comes from.
	Port int `json:"port"`
}

// Neighbours answers Sharing.
type Neighbours struct {
	// URLs are of other machines that fetch a root or layer now, by its digest; below each are its chunks by its digits, and what is there by the
	// digits and "/held".
	URLs map[image.Digest][]string `json:"urls"`
}

// Report is what inspection found.
type Report struct {
	Hardware api.Hardware       `json:"hardware"`
	Health   []api.HealthResult `json:"health"`
}

// Instruction answers Report, CleanReport and StageReport: what the machine shall do next.
type Instruction struct {
	// Do is "wait" (ask again with the same report after RetrySeconds), "reboot", "poweroff" or "continue".
	Do           string  `json:"do"`
	RetrySeconds float64 `json:"retry_seconds,omitempty"`
	Message      string  `json:"message,omitempty"`
	// Next is what a machine that is to reboot would boot. It may start that kernel itself, without its firmware; nil: the firmware has to.
	Next *Next `json:"next,omitempty"`
}

// Next is a kernel to start from a running boot agent.
type Next struct {
	Kernel image.Digest `json:"kernel"`
	// Initrds are loaded one behind the other.
	Initrds []image.Digest `json:"initrds"`
	// Arguments are the kernel's, all of them.
	Arguments string `json:"arguments"`
}

// Problem answers what is refused, as problem details (RFC 9457).
type Problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// Do is what the machine shall do instead, as in Instruction; an extension of the format (section 3.2). Empty: what it likes.
	Do string `json:"do,omitempty"`
}

// Lease is what DHCP gave the boot agent's interface.
type Lease struct {
	Interface string
	Address   netip.Prefix
	Gateway   netip.Addr
}
