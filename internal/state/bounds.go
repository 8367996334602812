package state

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// maxLostReasonBytes bounds why a member was lost: a record may name thousands of them.
const maxLostReasonBytes = 200

func boundRecord(r *api.ClusterRecord) {
	r.Message = api.ShortMessage(r.Message)
	r.Lost = slices.Clone(r.Lost)
	for i := range r.Lost {
		r.Lost[i].Reason = api.Shorten(r.Lost[i].Reason, maxLostReasonBytes)
	}
}

func boundMachineRecord(r *api.MachineRecord) {
	r.Message, r.PowerMessage = api.ShortMessage(r.Message), api.ShortMessage(r.PowerMessage)
}

func boundNode(n *api.NodeRecord) {
	boundPool(n)
	n.Stacks, n.Environments = slices.Clone(n.Stacks), slices.Clone(n.Environments)
	for i := range n.Stacks {
		n.Stacks[i].Problems = shortened(n.Stacks[i].Problems)
	}
	for i := range n.Environments {
		n.Environments[i].Problems = shortened(n.Environments[i].Problems)
	}
}

// boundPool shortens what a node says is wrong with its room for volumes, and with their way to other nodes.
func boundPool(n *api.NodeRecord) {
	if n.VolumePool != nil {
		pool := *n.VolumePool
		pool.Problems, pool.UnlimitedIO = shortened(pool.Problems), api.ShortMessage(pool.UnlimitedIO)
		n.VolumePool = &pool
	}
	if n.VolumeSharing != nil {
		sharing := *n.VolumeSharing
		sharing.ServeProblem, sharing.ReachProblem = api.ShortMessage(sharing.ServeProblem), api.ShortMessage(sharing.ReachProblem)
		n.VolumeSharing = &sharing
	}
}

func shortened(problems []string) []string {
	problems = slices.Clone(problems)
	for i := range problems {
		problems[i] = api.ShortMessage(problems[i])
	}
	return problems
}
