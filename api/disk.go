package api

// System is a kind of operating system, by which a virtual machine is equipped.
type System string

// The systems. Other is for those that have no drivers for virtual devices; they get ones that real machines have.
const (
	SystemLinux   System = "linux"
	SystemWindows System = "windows"
	SystemOther   System = "other"
)

// ForeignDisk describes the disk of another system, from which virtual machines of an imported environment boot. It has no agent of this product.
type ForeignDisk struct {
	OS System `json:"os"`
	// Firmware is the kind of firmware that boots the disk.
	Firmware Firmware `json:"firmware"`
	// Size is the size of the disk. Each member has a private copy, which holds its changes.
	Size Bytes `json:"size"`
	// Probe shows when a member is ready.
	Probe Probe `json:"probe"`
}

// Probe is a test of whether a member without an agent is ready: one of TCP, SSH, Ping and Console.
type Probe struct {
	// TCP is a port that takes a connection.
	TCP int `json:"tcp,omitempty"`
	// SSH: a server on port 22 says its version.
	SSH bool `json:"ssh,omitempty"`
	// Ping: the member's address answers an ICMP echo request.
	Ping bool `json:"ping,omitempty"`
	// Console is a text on the first serial port.
	Console string `json:"console,omitempty"`
	// Timeout bounds the time from the machine's start until the probe succeeds. A member that takes longer is unhealthy. The default is 4m.
	Timeout Duration `json:"timeout,omitempty"`
}
