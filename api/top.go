package api

import "time"

// MemberUse is what a member has used since it started, as its node's agent reads it.
type MemberUse struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	// MemoryBytes is what it has in memory now, without files that the kernel could drop.
	MemoryBytes int64 `json:"memory_bytes"`
	// DiskReadBytes and DiskWrittenBytes are omitted where nothing counts them.
	DiskReadBytes    *int64 `json:"disk_read_bytes,omitempty"`
	DiskWrittenBytes *int64 `json:"disk_written_bytes,omitempty"`
}

// UsePoint is a member's use over the few seconds before a time. What is not known is omitted, never zero.
type UsePoint struct {
	At time.Time `json:"at"`
	// CPUCores is how many cores were busy.
	CPUCores    *float64 `json:"cpu_cores,omitempty"`
	MemoryBytes int64    `json:"memory_bytes"`
	// The others are bytes per second.
	SentRate        *float64 `json:"sent_bytes_per_second,omitempty"`
	ReceivedRate    *float64 `json:"received_bytes_per_second,omitempty"`
	DiskReadRate    *float64 `json:"disk_read_bytes_per_second,omitempty"`
	DiskWrittenRate *float64 `json:"disk_written_bytes_per_second,omitempty"`
	// PowerWatts is its part of its node's power, and PowerTag how that is known.
	PowerWatts *float64  `json:"power_watts,omitempty"`
	PowerTag   EnergyTag `json:"power_tag,omitempty"`
}

// MemberTop is what a member of a cluster uses.
type MemberTop struct {
	Member string      `json:"member"`
	Group  string      `json:"group"`
	Node   string      `json:"node"`
	Stack  Stack       `json:"stack"`
	Phase  MemberPhase `json:"phase"`
	// Cores and LimitBytes are what it may use at most; 0: of all its machine.
	Cores      int   `json:"cores"`
	LimitBytes int64 `json:"limit_bytes"`
	// Points are the last minutes, the oldest first. Servers keep them in memory.
	Points []UsePoint `json:"points"`
	// Sensors are those of its machine, for a member that has all of it.
	Sensors *MachineSensors `json:"sensors,omitempty"`
}
