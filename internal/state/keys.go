package state

import (
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// The prefixes of keys; kinds tells what is under each. Names in keys are DNS labels (a cluster's is PROJECT.NAME outside the project "default")
// and IDs are made of [a-z0-9.-], so "/" separates safely.
const (
	keyFormat           = "format"
	prefixIntent        = "intent/"
	prefixRecord        = "record/"
	prefixChunk         = "chunk/"
	prefixQuarantine    = "quarantine/"
	prefixNetwork       = "network/"
	prefixNetIntent     = "networkintent/"
	prefixNetUse        = "networkuse/"
	prefixSecurityGroup = "securitygroup/"
	prefixGroupUse      = "securitygroupuse/"
	prefixAddress       = "address/"
	prefixAddressUse    = "addressuse/"
	prefixDataset       = "dataset/"
	prefixDatasetUse    = "datasetuse/"
	prefixDataPaths     = "datapaths/"
	prefixDataOutcomes  = "dataoutcomes/"
	prefixVolumeIntent  = "volumeintent/"
	prefixVolumeRecord  = "volumerecord/"
	prefixVolumeUse     = "volumeuse/"
	prefixVolumeProject = "volumeproject/"
	prefixNode          = "node/"
	prefixControl       = "nodecontrol/"
	prefixFaults        = "nodefaults/"
	prefixMeasures      = "nodemeasures/"
	prefixIdentity      = "nodeidentity/"
	prefixNodeSpan      = "nodespan/"
	prefixFormerSpan    = "formernodespan/"
	prefixUsage         = "usage/"
	prefixEnergy        = "energy/"
	prefixProject       = "project/"
	prefixProjectUse    = "projectuse/"
	prefixToken         = "token/"
	prefixShape         = "shape/"
	prefixJob           = "job/"
	prefixEventLog      = "events/"
	prefixEvent         = "event/"
	prefixEventPack     = "eventpack/"

	prefixMachine       = "machine/"
	prefixMAC           = "mac/"
	prefixMachineLog    = "machinelog/"
	prefixMachineRecord = "machinerecord/"
	prefixMachineIndex  = "machineindex/"
	prefixHardware      = "hardware/"
	prefixRedeemed      = "redeemed/"
	prefixCandidate     = "candidate/"
	prefixLease         = "lease/"
	prefixEnrollToken   = "enrolltoken/"
	prefixBuild         = "build/"
	prefixImage         = "image/"
	prefixEnvironment   = "environment/"
)

func keyChunk(uid, id string) string { return prefixChunk + uid + "/" + id }

func keyEventPack(log string, last int64) string {
	return fmt.Sprintf("%s%s/%012d", prefixEventPack, log, last)
}

func keyEvent(cluster string, seq int64) string {
	return fmt.Sprintf("%s%s/%012d", prefixEvent, cluster, seq)
}

func keyUsage(uid string, seq int64) string { return prefixUsage + usageKey(uid, seq) }

func keyNodeSpan(s *api.NodeSpan) string { return prefixNodeSpan + NodeSpanKey(s) }

// keyFormerSpan orders the spans of all nodes by their ends. Two of one node never end together.
func keyFormerSpan(s *api.NodeSpan) string { return keyFormerSpansAt(*s.To) + "/" + s.Node }

// keyFormerSpansAt is before the keys of all spans that end at a time, or later.
func keyFormerSpansAt(end time.Time) string {
	return fmt.Sprintf("%s%020d", prefixFormerSpan, max(0, end.UnixNano()))
}

// keyEnergy orders records by hours.
func keyEnergy(hour time.Time, node string) string { return keyEnergyHour(hour) + "/" + node }

func keyEnergyHour(hour time.Time) string { return prefixEnergy + hour.UTC().Format("2006010215") }

func usageKey(uid string, seq int64) string { return fmt.Sprintf("%s/%012d", uid, seq) }

// splitKey cuts a key into its prefix (with the slash) and the rest.
func splitKey(key string) (prefix, rest string) {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return key[:i+1], key[i+1:]
	}
	return key, ""
}
