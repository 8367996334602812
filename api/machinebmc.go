package api

import "time"

// HostInterface is what root of a machine can do with its BMC without a password: IPMI's system interface (KCS and its like; IPMI 2.0, chapters 9 to 12).
type HostInterface string

// The states. HostFixed is open, too: nothing here can close it.
const (
	HostOpen   HostInterface = "open"
	HostClosed HostInterface = "closed"
	HostFixed  HostInterface = "fixed"
)

// BMCAccount is one user of a BMC.
type BMCAccount struct {
	// ID is its number by IPMI, its Id by Redfish.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Enabled: it can log in somewhere.
	Enabled bool `json:"enabled,omitempty"`
	// Rights are what it may do, by channel: a privilege and kinds of access by IPMI, a role by Redfish.
	Rights map[string]string `json:"rights,omitempty"`
}

// BMCBaseline is who can get into a BMC and how, as it was read over the network. Passwords can't be read.
type BMCBaseline struct {
	// Kind and Address are those of the BMC that it was read from.
	Kind     PowerKind    `json:"kind"`
	Address  string       `json:"address"`
	At       time.Time    `json:"at,omitzero"`
	Accounts []BMCAccount `json:"accounts,omitempty"`
	// Settings are of channels and their networks, by name.
	Settings map[string]string `json:"settings,omitempty"`
}

// BMCDutyKind is a kind of work on a BMC itself.
type BMCDutyKind string

// The duties.
const (
	// BMCLock closes the host interface before a member gets the machine, and reads who can get in.
	BMCLock BMCDutyKind = "lock"
	// BMCRenew comes after a member: it closes the host interface, sets right who can get in, and changes the site's password.
	BMCRenew BMCDutyKind = "renew"
)

// BMCDuty is one work on a BMC that was decided and is not done yet.
type BMCDuty struct {
	Kind BMCDutyKind `json:"kind"`
	// Number grows with each duty of a machine.
	Number int64 `json:"number"`
	// For is the assignment that it is done for; empty for other duties than locks.
	For string `json:"for,omitempty"`
	// Deadline is when it has failed.
	Deadline time.Time `json:"deadline"`
}

// MachineBMC is what was decided and learned about the BMC of a machine, apart from power.
type MachineBMC struct {
	// Host is the host interface as it was read at HostAt; HostMessage is the reason why it is not closed.
	Host        HostInterface `json:"host,omitempty"`
	HostMessage string        `json:"host_message,omitempty"`
	HostAt      time.Time     `json:"host_at,omitzero"`
	// Baseline is who could get in before the last member got the machine. Nil: that was never read, or can't be (Unwatched is the reason).
	Baseline  *BMCBaseline `json:"baseline,omitempty"`
	Unwatched string       `json:"unwatched,omitempty"`
	// Drift is what differs from Baseline since a member has, or had, the machine; empty: nothing.
	Drift string `json:"drift,omitempty"`
	// Duty is what is to be done; nil: nothing. Duties counts them, LockedFor is the assignment of the last lock that was done.
	Duty      *BMCDuty `json:"duty,omitempty"`
	Duties    int64    `json:"duties,omitempty"`
	LockedFor string   `json:"locked_for,omitempty"`
	// RotatedAt is when the site's password was changed last; nil: never. Unrotated is the reason why it can't be.
	RotatedAt *time.Time `json:"rotated_at,omitempty"`
	Unrotated string     `json:"unrotated,omitempty"`
	// Sealed is the password since then, in place of the one whose seal has the SHA-256 Replaces: one that an operator enters later counts instead.
	// Next is the password that is being set. Until it was proved, either may be right. Nothing shows them.
	Sealed   []byte `json:"sealed,omitempty"`
	Replaces []byte `json:"replaces,omitempty"`
	Next     []byte `json:"next,omitempty"`
}
