package api

import (
	"net/netip"
	"time"
)

// MachinePhase is a phase in the life of a machine, by the leader's decisions about its power and its boot.
type MachinePhase string

// The phases of a machine.
const (
	MachineEnrolled   MachinePhase = "enrolled"   // known by its addresses, never inspected
	MachineInspecting MachinePhase = "inspecting" // boots or runs the environment "inspect"
	MachineOff        MachinePhase = "off"        // inspected, healthy, powered off on purpose
	MachineWarm       MachinePhase = "warm"       // inspected or cleaned, and waits in its boot agent for what it boots next
	MachineBooting    MachinePhase = "booting"    // powered on, its agent has not called yet
	MachineReady      MachinePhase = "ready"      // its agent is connected from this boot and the checks passed
	MachineCleaning   MachinePhase = "cleaning"   // boots or runs the environment "inspect", to be cleaned of what its tenant left
	MachineStopping   MachinePhase = "stopping"   // asked to power off
	MachineFailed     MachinePhase = "failed"     // a step missed its deadline or was refused; Message tells what to do
	MachineRemoving   MachinePhase = "removing"   // to be forgotten once it is off
)

// Firmware is the kind of a machine's firmware.
type Firmware string

// The kinds of firmware.
const (
	FirmwareBIOS Firmware = "bios"
	FirmwareUEFI Firmware = "uefi"
)

// PowerKind is a kind of control of a machine's power.
type PowerKind string

// The kinds of power control.
const (
	PowerWakeOnLAN PowerKind = "wol"     // magic packet; off in-band by the agent; can't force off
	PowerIPMI      PowerKind = "ipmi"    // IPMI 2.0 over LAN
	PowerRedfish   PowerKind = "redfish" // DMTF Redfish
	PowerManual    PowerKind = "manual"  // a person presses the button
)

// PowerState is the known state of a machine's power.
type PowerState string

// The power states. PowerUnknown is never taken for PowerOff.
const (
	PowerOn      PowerState = "on"
	PowerOff     PowerState = "off"
	PowerUnknown PowerState = "unknown"
)

// PowerControl describes the way to a machine's power switch.
type PowerControl struct {
	Kind PowerKind `json:"kind"`
	// Address is the BMC's: HOST[:PORT] for ipmi (623), an http or https URL for redfish; empty for wol and manual.
	Address string `json:"address,omitempty"`
	// System names one of several systems behind one Redfish service: its Id, UUID or Name.
	System string `json:"system,omitempty"`
	User   string `json:"user,omitempty"`
	// CertificateSHA256 pins the certificate of an https BMC, in hexadecimal; empty: it must be valid for the machine's trust store.
	CertificateSHA256 string `json:"certificate_sha256,omitempty"`
}

// MachineSpec is the operators' description of a machine.
type MachineSpec struct {
	// MACs are of its provisioning NICs, the one it boots from first.
	MACs []string `json:"macs"`
	// Firmware may be left empty: its first boot tells (DHCP option 93, RFC 4578).
	Firmware Firmware     `json:"firmware,omitempty"`
	Power    PowerControl `json:"power"`
	// Console is the address of its serial console: tcp://HOST:PORT (a console server's raw port) or ipmi-sol; empty: it has none.
	Console string            `json:"console,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// TrunkMAC is of the NIC that carries VLANs of networks while it is a node; empty: none does. It may be a provisioning NIC.
	TrunkMAC string `json:"trunk_mac,omitempty"`
	// Adapters are those whose functions or ports members may have while it is a node.
	Adapters []MachineAdapter `json:"adapters,omitempty"`
	// Passthrough is what virtual machines get of its GPUs while it is a node; nil: nothing.
	Passthrough *MachinePassthrough `json:"passthrough,omitempty"`
	// SwitchPorts are those ports of managed switches that its NICs are connected to, as far as the switches don't tell by LLDP.
	SwitchPorts []SwitchPort `json:"switch_ports,omitempty"`
}

// SwitchPort is the port of a switch that a NIC is connected to.
type SwitchPort struct {
	MAC string `json:"mac"`
	// Cell is the fabric of the switch, and Port its port, SWITCH/PORT.
	Cell string `json:"cell"`
	Port string `json:"port"`
}

// MachineAdapter is an adapter of a machine whose functions or port members may have.
type MachineAdapter struct {
	// PCI is its address, such as 0000:3b:00.0: interfaces have no lasting names on a machine that boots over the network.
	PCI string `json:"pci"`
	// Cell is the fabric that it is connected to.
	Cell string `json:"cell"`
	// VirtualFunctions is how many of them it gets at each boot; 0: as many as its driver makes by itself.
	VirtualFunctions int `json:"virtual_functions,omitempty"`
}

// MachinePassthrough is what virtual machines get of a machine's GPUs.
type MachinePassthrough struct {
	// GPUs are those that they get, by PCI address or words of the model, or "all".
	GPUs []string `json:"gpus"`
	// Clearing is how memory of GPUs is cleared between owners: proven or reset; empty: proven.
	Clearing string `json:"clearing,omitempty"`
}

// MachineIntent is the stored intent of operators for a machine. API handlers write it.
type MachineIntent struct {
	Name string `json:"name"`
	// UID tells a machine from an earlier one of the same name.
	UID  string      `json:"uid"`
	Spec MachineSpec `json:"spec"`
	// Sealed is the BMC's password, encrypted with a key of the site secret; nothing shows it.
	Sealed []byte `json:"sealed,omitempty"`
	// Request is the newest request about its power, Inspect the number of the newest request to inspect it.
	Request PowerRequest `json:"request"`
	Inspect int64        `json:"inspect,omitempty"`
	// Clean is the newest request to clean it, Hold the newest to quarantine or to release it.
	Clean CleanRequest `json:"clean,omitzero"`
	Hold  HoldRequest  `json:"hold,omitzero"`
	// RemoveRequestedAt is set once it is to be forgotten.
	RemoveRequestedAt *time.Time `json:"remove_requested_at,omitempty"`
	// RemoveForce: members that run on it do not keep it, and one whose power nothing can read or cut is forgotten without waiting for it to go off.
	RemoveForce bool      `json:"remove_force,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	By          string    `json:"by"`
}

// PowerAction is an action on a machine's power.
type PowerAction string

// The power actions.
const (
	PowerActionOn    PowerAction = "on"
	PowerActionOff   PowerAction = "off"   // in-band and soft first, then hard
	PowerActionCycle PowerAction = "cycle" // off, then on with the same environment
)

// PowerRequest is one request about a machine's power.
type PowerRequest struct {
	// Number grows with each request of a machine; 0 is none yet.
	Number int64       `json:"number"`
	Action PowerAction `json:"action,omitempty"`
	// Environment is the environment to boot, for on and cycle. If it is empty, cycle boots the present environment.
	Environment string `json:"environment,omitempty"`
	// Force: members that run on it do not keep it from going off, and it is not asked politely first.
	Force bool      `json:"force,omitempty"`
	At    time.Time `json:"at,omitzero"`
	By    string    `json:"by,omitempty"`
}

// MachineRecord is the stored record of all that was decided and learned about a machine. The leader writes it.
type MachineRecord struct {
	Name    string       `json:"name"`
	UID     string       `json:"uid"`
	Phase   MachinePhase `json:"phase"`
	Message string       `json:"message,omitempty"`
	// Index is its place in the provisioning range, from 0; its address follows from it. No two machines share one.
	Index int `json:"index"`
	// Generation grows with every decision that an executor carries out: power orders and boots are fenced with it.
	Generation int64 `json:"generation"`
	// Power is the power as it has been read without a break since PowerObservedAt; PowerMessage tells why it is unknown.
	Power           PowerState `json:"power"`
	PowerMessage    string     `json:"power_message,omitempty"`
	PowerObservedAt time.Time  `json:"power_observed_at,omitzero"`
	// DoneRequest and DoneInspect number the newest requests that were taken up.
	DoneRequest int64 `json:"done_request,omitempty"`
	DoneInspect int64 `json:"done_inspect,omitempty"`
	// DoneClean and DoneHold number the newest requests to clean it, and to quarantine or release it, that were taken up.
	DoneClean int64 `json:"done_clean,omitempty"`
	DoneHold  int64 `json:"done_hold,omitempty"`
	// Clean is the last cleaning that succeeded. It proves that the machine has nothing of a tenant whose boot has a smaller generation.
	// Nil: it was never cleaned.
	Clean *MachineClean `json:"clean,omitempty"`
	// Cleaning is the newest cleaning unless it succeeded: it goes on, has failed, was interrupted, or was a dry run.
	Cleaning *MachineClean `json:"cleaning,omitempty"`
	// Quarantine is the reason why nobody gets the machine. Nil: it is free of it.
	Quarantine *MachineQuarantine `json:"quarantine,omitempty"`
	// Boot is the boot that goes on or went on last; nil: it never booted here.
	Boot *Boot `json:"boot,omitempty"`
	// Tenant is the member for which the machine was booted and after which it has not been cleaned yet; nil: the machine holds nothing of any.
	// A machine with a tenant boots nothing but what that member boots, or what cleans it.
	Tenant *MachineTenant `json:"tenant,omitempty"`
	// BMC is what is known of its BMC apart from power; nil: nothing yet.
	BMC *MachineBMC `json:"bmc,omitempty"`
	// Attempt counts the tries at what goes on now, from 1.
	Attempt int `json:"attempt,omitempty"`
	// Stop describes the stop of a machine that is stopping, or of a machine that has failed because it could not be stopped. Otherwise it is nil.
	Stop *MachineStop `json:"stop,omitempty"`
	// Firmware and Architecture are those named in its DHCP requests (option 93, RFC 4578).
	Firmware     Firmware `json:"firmware,omitempty"`
	Architecture string   `json:"architecture,omitempty"`
	// InspectedAt is the time of the last report of Hardware, which is stored apart. Health has the results of the checks at that time.
	InspectedAt *time.Time     `json:"inspected_at,omitempty"`
	Health      []HealthResult `json:"health,omitempty"`
	// LastVerifiedAt is the last time at which its agent called, which proves that the machine boots.
	LastVerifiedAt *time.Time `json:"last_verified_at,omitempty"`
	ChangedAt      time.Time  `json:"changed_at"`
}

// MachineStop describes the stop of a machine and the step after it.
type MachineStop struct {
	// Generation fences the order to cut the power.
	Generation int64 `json:"generation"`
	// CutAt is the time at which the power of a machine that is not off is cut. With force it is the time of the decision.
	CutAt time.Time `json:"cut_at"`
	// Deadline is the time after which the stop has failed.
	Deadline time.Time `json:"deadline"`
	// ThenBoot is the environment to boot once it is off, empty for none.
	ThenBoot string `json:"then_boot,omitempty"`
	// Unheard: the stop failed while the machine was cut off from the server, so it never got the order. It gets it when its agent connects again.
	Unheard bool `json:"unheard,omitempty"`
}

// BootStage is one stage of a boot. Each lasts from the end of the one before to its own end.
type BootStage string

// The stages of a boot, in their order.
const (
	StagePower    BootStage = "power"    // ends when the power is on, or the magic packet is sent
	StageFirmware BootStage = "firmware" // ends with the first DHCP request
	StageDHCP     BootStage = "dhcp"     // ends with the first request for a loader or script
	StageLoader   BootStage = "loader"   // ends when kernel and initrd are handed over
	StageKernel   BootStage = "kernel"   // ends when the machine calls in from its initrd
	StageRoot     BootStage = "root"     // ends when its root is mounted
	StageAgent    BootStage = "agent"    // ends when its node agent is connected
	StageReady    BootStage = "ready"    // ends when its root is wholly local and the checks passed
)

// BootStages are all stages in their order.
func BootStages() []BootStage {
	return []BootStage{StagePower, StageFirmware, StageDHCP, StageLoader, StageKernel, StageRoot, StageAgent, StageReady}
}

// BootPurpose is the purpose of a boot.
type BootPurpose string

// The purposes of a boot.
const (
	BootEnroll      BootPurpose = "enroll"      // a stranger: inspected, then it waits to be taken in
	BootInspect     BootPurpose = "inspect"     // a known machine is looked at
	BootEnvironment BootPurpose = "environment" // what an operator asked for
	BootMember      BootPurpose = "member"      // the machine is a member of a cluster, whose users have all of it
	BootClean       BootPurpose = "clean"       // what a tenant left on a known machine is erased
)

// Boot is one boot of a machine.
type Boot struct {
	// Generation is the record's when it was decided.
	Generation int64       `json:"generation"`
	Purpose    BootPurpose `json:"purpose"`
	// Environment is its name, Digest that of the image's manifest.
	Environment string    `json:"environment"`
	Digest      string    `json:"digest"`
	DecidedAt   time.Time `json:"decided_at"`
	// Deadline is the time by which the machine must be ready, or the boot has failed.
	Deadline time.Time `json:"deadline"`
	// RedeemedAt is the time at which its boot token was exchanged. A token is good for one boot.
	RedeemedAt *time.Time `json:"redeemed_at,omitempty"`
	// Stages are the ends of the stages reached so far, in their order.
	Stages []StageTime `json:"stages,omitempty"`
	// LoaderBytes were sent over TFTP and HTTP before the kernel ran; ReadyBytes of the root were read before its agent called, of
	// RootBytes in all. PeerBytes of those came from other machines and not from a server, counted once they were verified; it is known when
	// the root is local.
	LoaderBytes int64 `json:"loader_bytes,omitempty"`
	ReadyBytes  int64 `json:"ready_bytes,omitempty"`
	RootBytes   int64 `json:"root_bytes,omitempty"`
	PeerBytes   int64 `json:"peer_bytes,omitempty"`
	// Local is true once nothing of the root is read over the network any more.
	Local bool `json:"local,omitempty"`
	// Member is the assignment that it is booted for; empty for other purposes than that.
	Member string `json:"member,omitempty"`
	// Files are laid into its root: what the member had changed in it when its cluster was paused. Nil: nothing is.
	Files *SavedFiles `json:"files,omitempty"`
	// Warm: the machine was on, in its boot agent, and goes on from there, without its firmware.
	Warm bool `json:"warm,omitempty"`
}

// MachineTenant is the member that had a whole machine last.
type MachineTenant struct {
	// Assignment is the member's, Cluster the name of its cluster.
	Assignment string `json:"assignment"`
	Cluster    string `json:"cluster"`
	// Generation is of the first boot for it.
	Generation int64 `json:"generation"`
	// Paused: the machine went off, or goes off, because the member's cluster is paused. It is booted for the member again.
	Paused bool `json:"paused,omitempty"`
}

// StageTime is the time at which a stage ended.
type StageTime struct {
	Stage BootStage `json:"stage"`
	At    time.Time `json:"at"`
}

// HealthResult is the result of one health check.
type HealthResult struct {
	Check   string `json:"check"`
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"`
	// DurationSeconds is the duration of the stage.
	DurationSeconds float64 `json:"duration_seconds"`
}

// MachinePart is a machine as the API shows it, as part of its node.
type MachinePart struct {
	Spec          MachineSpec   `json:"spec"`
	Record        MachineRecord `json:"record"`
	Address       netip.Addr    `json:"address,omitzero"`
	Request       PowerRequest  `json:"request"`
	Clean         CleanRequest  `json:"clean,omitzero"`
	Hold          HoldRequest   `json:"hold,omitzero"`
	Hardware      *Hardware     `json:"hardware,omitempty"`
	EnrolledAt    time.Time     `json:"enrolled_at"`
	TargetSeconds float64       `json:"target_seconds,omitempty"`
	// ProvisioningPorts are the ports of managed switches that it boots through. While a tenant has it, they reach the server alone.
	ProvisioningPorts []NodePort `json:"provisioning_ports,omitempty"`
	// Sensors are those that its BMC reported last; absent where it has none or was not read yet. Single sensors are shown to administrators.
	Sensors *MachineSensors `json:"sensors,omitempty"`
}

// Candidate is a stranger that booted on the provisioning network and waits to be taken in; stored.
type Candidate struct {
	// MAC is of the NIC it booted from, and its name here.
	MAC      string    `json:"mac"`
	Hardware *Hardware `json:"hardware,omitempty"`
	// Address is its lease on the provisioning network.
	Address     netip.Addr `json:"address,omitzero"`
	FirstSeenAt time.Time  `json:"first_seen_at"`
	LastSeenAt  time.Time  `json:"last_seen_at"`
	// Problem is the reason why its enrollment token, if it had one, was refused.
	Problem string `json:"problem,omitempty"`
}

// Lease is an address given to a stranger; stored before it is offered (RFC 2131). Known machines need none: theirs follow from Index.
type Lease struct {
	MAC       string     `json:"mac"`
	Address   netip.Addr `json:"address"`
	ExpiresAt time.Time  `json:"expires_at"`
}

// EnrollRequest is the body that enrolls a machine.
type EnrollRequest struct {
	Name string      `json:"name"`
	Spec MachineSpec `json:"spec"`
	// Password is the BMC's. It is sealed at once and never shown.
	Password string `json:"password,omitempty"`
	// Inspect asks to power it on and look at it at once.
	Inspect bool `json:"inspect,omitempty"`
}

// MachinePatch is the body of a machine's PATCH, a merge patch (RFC 7396): fields that it names change. A null password removes the stored one.
type MachinePatch struct {
	Spec     MachineSpec `json:"spec"`
	Password string      `json:"password,omitempty"`
}

// NodePowerRequest is the body of a request about the power of nodes.
type NodePowerRequest struct {
	Action      PowerAction `json:"action"`
	Environment string      `json:"environment,omitempty"`
	Force       bool        `json:"force,omitempty"`
}

// EnrollmentToken lets machines and nodes that carry it enroll by themselves; stored, only its secret's hash.
type EnrollmentToken struct {
	ID   string `json:"id"`
	Hash []byte `json:"hash,omitempty"`
	// Secret is only in the answer that made the token: one line, which ends with the pin of the site's CA.
	Secret string `json:"secret,omitempty"`
	// Prefix begins the names of what it enrolls: machines become PREFIX1, PREFIX2 and so on, nodes have names of their own.
	Prefix string `json:"prefix"`
	// Uses is the number of machines or nodes that it can still enroll.
	Uses int `json:"uses"`
	// Approve: the nodes it enrolls need no approval.
	Approve   bool         `json:"approve,omitempty"`
	Power     PowerControl `json:"power"`
	Sealed    []byte       `json:"sealed,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at"`
	By        string       `json:"by"`
}
