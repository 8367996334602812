package api

// System is a kind of operating system, by which a virtual machine is equipped.
type System string

// The systems. Other is for those that have no drivers for virtual devices; they get ones that real machines have.
const (
	SystemLinux   System = "linux"
	SystemWindows System = "windows"
	SystemOther   System = "other"
)

// ForeignDisk is what boots in virtual machines of an imported environment: the disk of another system, without an agent of this product in it.
type ForeignDisk struct {
	OS System `json:"os"`
	// Firmware is the one that boots the disk.
	Firmware Firmware `json:"firmware"`
	// Size is that of the disk; a member's own is a private copy that holds what it changes.
	Size Bytes `json:"size"`
	// Probe tells when a member is ready.
	Probe Probe `json:"probe"`
}

// Probe is how a member without an agent shows that it is ready: one of TCP, SSH, Ping and Console.
type Probe struct {
	// TCP is a port that takes a connection.
	TCP int `json:"tcp,omitempty"`
	// SSH: a server on port 22 says its version.
	SSH bool `json:"ssh,omitempty"`
	// Ping: the member's address answers an ICMP echo request.
	Ping bool `json:"ping,omitempty"`
	// Console is a text on the first serial port.
	Console string `json:"console,omitempty"`
	// Timeout is how long that may take from the machine's start; a member that takes longer is unhealthy. It defaults to 4m.
	Timeout Duration `json:"timeout,omitempty"`
}
