package state

import (
	"fmt"
	"strings"
)

// The keys. Names in them are DNS labels (a cluster's is PROJECT.NAME outside the project "default") and IDs are made of [a-z0-9.-], so "/" separates safely.
//
//	format                   formatRecord
//	intent/CLUSTER           api.ClusterIntent, written by API handlers
//	record/CLUSTER           api.ClusterRecord, the header whose commit makes a generation true
//	chunk/CLUSTERUID/CHUNK   []api.Assignment, immutable, true only when a record names it
//	quarantine/ASSIGNMENT    api.Quarantine
//	node/NODE                api.NodeRecord
//	nodecontrol/NODE         api.NodeControl, written by API handlers; only while the node is drained
//	nodespan/NODE/SEQ        api.NodeSpan, SEQ as 12 digits; written by the leader
//	usage/CLUSTERUID/SEQ     api.UsageRecord, SEQ as 12 digits; immutable, written by the leader
//	project/PROJECT          api.Project, written by API handlers
//	projectuse/PROJECT       projectUse, written with everything that begins to belong to the project
//	token/TOKEN              api.TokenInfo, written by API handlers
//	job/JOB                  api.Job
//	events/LOG               eventLog, the first and last sequence numbers kept; LOG is CLUSTER, or @NODE for a machine's
//	event/LOG/SEQ            api.Event, SEQ as 12 digits
//	machine/NODE             api.MachineIntent, written by API handlers, and by the leader for what enrols by a token
//	mac/MAC                  macRecord, whose a provisioning NIC is; MAC as 12 digits in pairs with hyphens; written with the machine
//	machinerecord/NODE       api.MachineRecord, written by the leader
//	machineindex/INDEX       indexRecord, whose a place in the provisioning range is; written with the machine's record
//	hardware/NODE            api.Hardware, written by the leader, or taken over from the candidate with the machine
//	candidate/MAC            api.Candidate, written by who serves strangers
//	lease/MAC                api.Lease, written by who serves strangers, before it is offered
//	enrolltoken/TOKEN        api.EnrollmentToken, written by API handlers, and by the leader with each use
//	build/BUILD              api.Build, written by API handlers, and by the leader as it goes on
//	image/HEX                api.Image, HEX as 64 digits; immutable
//	environment/NAME         api.EnvironmentRecord
const (
	keyFormat        = "format"
	prefixIntent     = "intent/"
	prefixRecord     = "record/"
	prefixChunk      = "chunk/"
	prefixQuarantine = "quarantine/"
	prefixNode       = "node/"
	prefixControl    = "nodecontrol/"
	prefixNodeSpan   = "nodespan/"
	prefixUsage      = "usage/"
	prefixProject    = "project/"
	prefixProjectUse = "projectuse/"
	prefixToken      = "token/"
	prefixJob        = "job/"
	prefixEventLog   = "events/"
	prefixEvent      = "event/"

	prefixMachine       = "machine/"
	prefixMAC           = "mac/"
	prefixMachineRecord = "machinerecord/"
	prefixMachineIndex  = "machineindex/"
	prefixHardware      = "hardware/"
	prefixCandidate     = "candidate/"
	prefixLease         = "lease/"
	prefixEnrollToken   = "enrolltoken/"
	prefixBuild         = "build/"
	prefixImage         = "image/"
	prefixEnvironment   = "environment/"
)

func keyChunk(uid, id string) string { return prefixChunk + uid + "/" + id }

func keyEvent(cluster string, seq int64) string {
	return fmt.Sprintf("%s%s/%012d", prefixEvent, cluster, seq)
}

func keyUsage(uid string, seq int64) string { return prefixUsage + usageKey(uid, seq) }

func keyNodeSpan(node string, seq int64) string { return prefixNodeSpan + nodeSpanKey(node, seq) }

func usageKey(uid string, seq int64) string { return fmt.Sprintf("%s/%012d", uid, seq) }

func nodeSpanKey(node string, seq int64) string { return fmt.Sprintf("%s/%012d", node, seq) }

// splitKey cuts a key into its kind (with the slash) and the rest.
func splitKey(key string) (kind, rest string) {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return key[:i+1], key[i+1:]
	}
	return key, ""
}
