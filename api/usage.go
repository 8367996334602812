package api

import (
	"maps"
	"time"
)

// SpanKind is the use of the resources of a span.
type SpanKind string

// The kinds of spans. Every core-second of an inventory is in exactly one: these, or, by what is left of the capacity, idle or down.
const (
	SpanAllocated SpanKind = "allocated" // held by a cluster, from the decision to the release
	SpanCleaning  SpanKind = "cleaning"  // released, until it was confirmed clean: the site's own, quarantine included
)

// SpanStorage is the room of a volume on its node, from the decision about its size to the next, or to the end of its purge. It is no part of a node's
// capacity of cores.
const SpanStorage SpanKind = "storage"

// UsageSpan is a number of like assignments of a cluster on one node over the same time. It is written in the commit that ends it.
type UsageSpan struct {
	Kind SpanKind  `json:"kind"`
	Node string    `json:"node"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Members, Cores, MemoryBytes and DiskBytes are sums over the assignments. Spares count, too.
	Members     int   `json:"members"`
	Cores       int   `json:"cores"`
	MemoryBytes int64 `json:"memory_bytes"`
	// DiskBytes are the sizes of private disks.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// StorageBytes is the size of a volume.
	StorageBytes int64 `json:"storage_bytes,omitempty"`
	// Devices are the amounts of counters of devices, by class and counter, such as "gpu/slices".
	Devices map[string]int64 `json:"devices,omitempty"`
}

// UsageRecord is the spans of a cluster, or of a volume, that ended with one commit; immutable.
type UsageRecord struct {
	// Seq counts the records of the cluster, 1 for the first. That of a volume's record is the generation that ended its spans.
	Seq int64  `json:"seq"`
	UID string `json:"uid"`
	// Cluster is the cluster's name; for a volume that of the cluster of which it is the home, "" for other volumes.
	Cluster string `json:"cluster"`
	Project string `json:"project"`
	User    string `json:"user"`
	// Volume is the name of the volume among all that the record is of, and ClusterUID the UID of the cluster of which that is the home.
	Volume     string      `json:"volume,omitempty"`
	ClusterUID string      `json:"cluster_uid,omitempty"`
	Spans      []UsageSpan `json:"spans"`
}

// NodeSpan is the offer of a node over a time in which neither its capacity nor its being up or down changed.
type NodeSpan struct {
	// Seq is 0, so a node has one present span. Older versions counted spans by it.
	Seq         int64  `json:"seq"`
	Node        string `json:"node"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	// Devices are the amounts of all its devices, by class and counter.
	Devices map[string]int64 `json:"devices,omitempty"`
	Down    bool             `json:"down"`
	// To is nil for the present span of a node.
	From time.Time  `json:"from"`
	To   *time.Time `json:"to,omitempty"`
}

// Amount is a quantity of use.
type Amount struct {
	// NodeSeconds are member-seconds weighted by the share of their node's cores: a cluster that holds a whole node for an hour has used
	// 3,600.
	NodeSeconds       float64 `json:"node_seconds"`
	MemberSeconds     float64 `json:"member_seconds"`
	CoreSeconds       float64 `json:"core_seconds"`
	MemoryByteSeconds float64 `json:"memory_byte_seconds"`
	// DeviceSeconds are amounts of counters of devices over time, by class and counter: a GPU of 7 slices that was held whole for a minute
	// comes to 420 of "gpu/slices".
	DeviceSeconds map[string]float64 `json:"device_seconds,omitempty"`
	// StorageByteSeconds are sizes of volumes over time. They are in rows, and not in the capacity of the site.
	StorageByteSeconds float64 `json:"storage_byte_seconds,omitempty"`
}

// Plus returns the sum.
func (a Amount) Plus(b Amount) Amount {
	return Amount{
		NodeSeconds: a.NodeSeconds + b.NodeSeconds, MemberSeconds: a.MemberSeconds + b.MemberSeconds,
		CoreSeconds: a.CoreSeconds + b.CoreSeconds, MemoryByteSeconds: a.MemoryByteSeconds + b.MemoryByteSeconds,
		DeviceSeconds: plusDevices(a.DeviceSeconds, b.DeviceSeconds), StorageByteSeconds: a.StorageByteSeconds + b.StorageByteSeconds,
	}
}

func plusDevices(a, b map[string]float64) map[string]float64 {
	if len(b) == 0 {
		return a
	}
	sum := make(map[string]float64, len(a)+len(b))
	maps.Copy(sum, a)
	for counter, seconds := range b {
		sum[counter] += seconds
	}
	return sum
}

// IsZero reports whether nothing was used.
func (a Amount) IsZero() bool {
	return a.NodeSeconds == 0 && a.MemberSeconds == 0 && a.CoreSeconds == 0 && a.MemoryByteSeconds == 0 && a.StorageByteSeconds == 0 &&
		len(a.DeviceSeconds) == 0
}

// UsageRow is the use of one cluster, user or project, or of all, in one period.
type UsageRow struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Project string    `json:"project,omitempty"`
	User    string    `json:"user,omitempty"`
	Cluster string    `json:"cluster,omitempty"`
	UID     string    `json:"uid,omitempty"`
	Amount
	// Energy is omitted where nothing is known of it.
	Energy *EnergyUse `json:"energy,omitempty"`
}

// SiteUsage is the use of the site's capacity in a period: Capacity = Allocated + Cleaning + Idle + Down, in each unit.
type SiteUsage struct {
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Capacity  Amount    `json:"capacity"`
	Allocated Amount    `json:"allocated"`
	Cleaning  Amount    `json:"cleaning"`
	Idle      Amount    `json:"idle"`
	Down      Amount    `json:"down"`
	// Energy is omitted where no node reported any, nor that it is unknown.
	Energy *SiteEnergy `json:"energy,omitempty"`
}

// UsageReport is the answer to a question for usage.
type UsageReport struct {
	Rows []UsageRow `json:"rows"`
	// Site is set for administrators, a row for each period.
	Site []SiteUsage `json:"site,omitempty"`
}
