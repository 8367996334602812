package state

import (
	"fmt"
	"strings"
)

// The keys. Names in them are DNS labels and IDs are made of [a-z0-9.-], so "/" separates safely.
//
//	format                   formatRecord
//	intent/CLUSTER           api.ClusterIntent, written by API handlers
//	record/CLUSTER           api.ClusterRecord, the header whose commit makes a generation true
//	chunk/CLUSTERUID/CHUNK   []api.Assignment, immutable, true only when a record names it
//	quarantine/ASSIGNMENT    api.Quarantine
//	node/NODE                api.NodeRecord
//	job/JOB                  api.Job
//	events/CLUSTER           eventLog, the first and last sequence numbers kept
//	event/CLUSTER/SEQ        api.Event, SEQ as 12 digits
const (
	keyFormat        = "format"
	prefixIntent     = "intent/"
	prefixRecord     = "record/"
	prefixChunk      = "chunk/"
	prefixQuarantine = "quarantine/"
	prefixNode       = "node/"
	prefixJob        = "job/"
	prefixEventLog   = "events/"
	prefixEvent      = "event/"
)

func keyChunk(uid, id string) string { return prefixChunk + uid + "/" + id }

func keyEvent(cluster string, seq int64) string {
	return fmt.Sprintf("%s%s/%012d", prefixEvent, cluster, seq)
}

// splitKey cuts a key into its kind (with the slash) and the rest.
func splitKey(key string) (kind, rest string) {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return key[:i+1], key[i+1:]
	}
	return key, ""
}
