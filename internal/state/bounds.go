package state

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// maxLostReasonBytes bounds why a member was lost: a record may name thousands of them.
const maxLostReasonBytes = 200

// bounded returns what is stored of a record: its messages, which tenants, nodes and BMCs may have worded, have a bounded length.
func bounded(v any) any {
	switch v := v.(type) {
	case api.Event:
		v.Message = api.ShortMessage(v.Message)
		return v
	case api.Quarantine:
		v.Reason = api.ShortMessage(v.Reason)
		return v
	case api.ClusterRecord:
		v.Message = api.ShortMessage(v.Message)
		v.Lost = slices.Clone(v.Lost)
		for i := range v.Lost {
			v.Lost[i].Reason = api.Shorten(v.Lost[i].Reason, maxLostReasonBytes)
		}
		return v
	case api.Job:
		v.Message = api.ShortMessage(v.Message)
		return v
	case api.Build:
		v.Message = api.ShortMessage(v.Message)
		return v
	case api.MachineRecord:
		v.Message, v.PowerMessage = api.ShortMessage(v.Message), api.ShortMessage(v.PowerMessage)
		return v
	case api.NodeRecord:
		return boundedNode(v)
	default:
		return v
	}
}

func boundedNode(n api.NodeRecord) api.NodeRecord {
	n.Stacks, n.Environments = slices.Clone(n.Stacks), slices.Clone(n.Environments)
	for i := range n.Stacks {
		n.Stacks[i].Problems = shortened(n.Stacks[i].Problems)
	}
	for i := range n.Environments {
		n.Environments[i].Problems = shortened(n.Environments[i].Problems)
	}
	return n
}

func shortened(problems []string) []string {
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i] = api.ShortMessage(problems[i])
	}
	return problems
}
