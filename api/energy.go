package api

import (
	"math"
	"time"
)

// EnergyTag is how a figure about energy came about. A figure that is unavailable is omitted, never zero.
type EnergyTag string

// The tags.
const (
	EnergyMeasured    EnergyTag = "measured"    // read from a counter or a meter
	EnergyModelled    EnergyTag = "modelled"    // computed from utilization
	EnergyUnavailable EnergyTag = "unavailable" // not known, with the reason beside it
)

// EnergySource is a kind of source of energy readings.
type EnergySource string

// The sources.
const (
	EnergyRAPL    EnergySource = "rapl"    // the processors' own counters (Running Average Power Limit)
	EnergyBMC     EnergySource = "bmc"     // the machine's BMC, by Redfish or IPMI
	EnergyPDU     EnergySource = "pdu"     // an outlet of a power distribution unit, by SNMP
	EnergyCommand EnergySource = "command" // a program of the operator
	EnergyModel   EnergySource = "model"   // a line through readings of nodes with the same processors
)

// EnergyDomain is a part of a machine with a counter of its own, such as "package-0", "core" or "dram".
type EnergyDomain struct {
	Name string `json:"name"`
	// Watts is the mean since the reading before; omitted at the first.
	Watts *float64 `json:"watts,omitempty"`
	// Counted: it is a part of the source's sum. Cores are not: their package has them.
	Counted bool `json:"counted"`
}

// EnergyReading is what one source of a node says now.
type EnergyReading struct {
	Source EnergySource `json:"source"`
	Tag    EnergyTag    `json:"tag"`
	// Scope is the part of the machine that the source sees, in words.
	Scope string `json:"scope,omitempty"`
	// Watts is the present power.
	Watts *float64 `json:"watts,omitempty"`
	// Reason is why there is no reading, or how a modelled one came about.
	Reason  string         `json:"reason,omitempty"`
	Domains []EnergyDomain `json:"domains,omitempty"`
}

// EnergyCounter is a source's reading as an agent sends it.
type EnergyCounter struct {
	EnergyReading
	// Microjoules counts what the source saw since the agent's run began, but for breaks. Breaks is how often energy went uncounted: a
	// difference over a break says nothing.
	Microjoules int64 `json:"microjoules"`
	Breaks      int64 `json:"breaks,omitempty"`
}

// EnergySample is what an agent read at one moment. Times are monotonic, and counters never fall within a run.
type EnergySample struct {
	// Run is made at each start of an agent. Counters of two runs can't be compared.
	Run string `json:"run"`
	// ElapsedNanoseconds is the time since the run began.
	ElapsedNanoseconds int64 `json:"elapsed_ns"`
	// BusyNanoseconds is the time that the machine's CPUs have worked, CPUs is their number, and Processor their model.
	BusyNanoseconds int64  `json:"busy_ns"`
	CPUs            int    `json:"cpus"`
	Processor       string `json:"processor,omitempty"`
	// Members are the CPU times of the node's members, by assignment ID.
	Members map[string]int64 `json:"members,omitempty"`
	// SentBytes and ReceivedBytes are those of all members' ports; omitted where they are not counted.
	SentBytes     *int64          `json:"sent_bytes,omitempty"`
	ReceivedBytes *int64          `json:"received_bytes,omitempty"`
	Counters      []EnergyCounter `json:"counters,omitempty"`
}

// EnergyAmount is energy in microjoules, by how it is known. Whole numbers keep sums exact.
type EnergyAmount struct {
	MeasuredMicrojoules int64 `json:"measured_microjoules"`
	ModelledMicrojoules int64 `json:"modelled_microjoules"`
}

// Plus returns the sum. What is beyond the largest number stays there: a megawatt over a hundred days is within it.
func (a EnergyAmount) Plus(b EnergyAmount) EnergyAmount {
	return EnergyAmount{plusBounded(a.MeasuredMicrojoules, b.MeasuredMicrojoules), plusBounded(a.ModelledMicrojoules, b.ModelledMicrojoules)}
}

// plusBounded adds numbers that are not negative.
func plusBounded(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Joules returns it in joules.
func (a EnergyAmount) Joules() EnergyJoules {
	return EnergyJoules{float64(a.MeasuredMicrojoules) / 1e6, float64(a.ModelledMicrojoules) / 1e6}
}

// EnergyShare is what a cluster, or one of its jobs, used on a node.
type EnergyShare struct {
	ClusterUID string `json:"cluster_uid"`
	Cluster    string `json:"cluster"`
	Project    string `json:"project,omitempty"`
	User       string `json:"user,omitempty"`
	// Job is the job that ran; empty: none did, or the record has no room for more of them. Jobs that ran at once have equal parts.
	Job string `json:"job,omitempty"`
	EnergyAmount
	// MemberNanoseconds is the members' time of which the energy is known.
	MemberNanoseconds int64 `json:"member_ns"`
}

// EnergyRecord is the energy of a node in an hour: Counter is the sum of Shares, Idle and Unattributed. An interval between two samples
// belongs to the hour in which it ended.
type EnergyRecord struct {
	Node string    `json:"node"`
	Hour time.Time `json:"hour"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Counter is what the node's source counted.
	Counter EnergyAmount `json:"counter"`
	// Idle is the part of the CPU time in which no CPU worked. Unattributed is the part in which one worked for none of the members, and what rounding
	// left.
	Idle         EnergyAmount  `json:"idle"`
	Unattributed EnergyAmount  `json:"unattributed"`
	Shares       []EnergyShare `json:"shares,omitempty"`
	// KnownNanoseconds and UnknownNanoseconds are the node's time with and without a reading.
	KnownNanoseconds   int64 `json:"known_ns"`
	UnknownNanoseconds int64 `json:"unknown_ns"`
	// Mark is the sample that it goes up to; the next leader goes on from it.
	Mark *EnergySample `json:"mark,omitempty"`
}

// EnergyPoint is a node's power, work and network traffic over the few seconds before a time, all of the same interval. What is not known is
// omitted.
type EnergyPoint struct {
	At           time.Time `json:"at"`
	Watts        *float64  `json:"watts,omitempty"`
	CPUCores     *float64  `json:"cpu_cores,omitempty"`
	SentRate     *float64  `json:"sent_bytes_per_second,omitempty"`
	ReceivedRate *float64  `json:"received_bytes_per_second,omitempty"`
}

// NodeEnergy is the power of a node now, and its energy over the time of the report.
type NodeEnergy struct {
	Node string `json:"node"`
	// Source, Tag, Watts and Reason are of the source that the node's energy is taken from.
	EnergyReading
	// Readings are of all its sources.
	Readings []EnergyReading `json:"readings"`
	// Counter is the sum of Clusters, Idle and Unattributed; omitted where nothing is known.
	Counter            *EnergyAmount `json:"counter,omitempty"`
	Clusters           *EnergyAmount `json:"clusters,omitempty"`
	Idle               *EnergyAmount `json:"idle,omitempty"`
	Unattributed       *EnergyAmount `json:"unattributed,omitempty"`
	UnknownNodeSeconds float64       `json:"unknown_node_seconds"`
	// Points are the last minutes, the oldest first; the leader keeps them in memory.
	Points []EnergyPoint `json:"points"`
}

// ClusterEnergy is what a cluster, or one of its jobs, used over the time of the report.
type ClusterEnergy struct {
	Project string `json:"project,omitempty"`
	User    string `json:"user,omitempty"`
	Cluster string `json:"cluster"`
	UID     string `json:"uid"`
	// Job is the job's ID; empty for what was used while none ran.
	Job string `json:"job,omitempty"`
	EnergyAmount
	KnownMemberSeconds float64 `json:"known_member_seconds"`
}

// EnergyReport is the answer to a question for energy.
type EnergyReport struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Nodes are shown to administrators.
	Nodes    []NodeEnergy    `json:"nodes,omitempty"`
	Clusters []ClusterEnergy `json:"clusters"`
}

// EnergyJoules is energy in joules, by how it is known, rounded once.
type EnergyJoules struct {
	MeasuredJoules float64 `json:"measured_joules"`
	ModelledJoules float64 `json:"modelled_joules"`
}

// Plus returns the sum.
func (a EnergyJoules) Plus(b EnergyJoules) EnergyJoules {
	return EnergyJoules{a.MeasuredJoules + b.MeasuredJoules, a.ModelledJoules + b.ModelledJoules}
}

// EnergyUse is the energy of a row of a usage report; a row without any has none that is known.
type EnergyUse struct {
	EnergyJoules
	// KnownMemberSeconds are the member-seconds of which the energy is known.
	KnownMemberSeconds float64 `json:"known_member_seconds"`
}

// SiteEnergy is where a site's energy went: Counter = Clusters + Idle + Unattributed, added in this order.
type SiteEnergy struct {
	Counter      EnergyJoules `json:"counter"`
	Clusters     EnergyJoules `json:"clusters"`
	Idle         EnergyJoules `json:"idle"`
	Unattributed EnergyJoules `json:"unattributed"`
	// KnownNodeSeconds and UnknownNodeSeconds are nodes' time with and without a reading.
	KnownNodeSeconds   float64 `json:"known_node_seconds"`
	UnknownNodeSeconds float64 `json:"unknown_node_seconds"`
}
