package controller

import (
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/state"
)

// peersFrom is how many must fetch an image at once for it to spread from node to node; below, the server alone is as fast. Measured:
// docs/performance.md.
const peersFrom = 2

// maxPeers bounds how many sources a node is told of.
const maxPeers = 8

// bootsPerPeer bounds how many boots at once are sent to one node: more would wait there for each other while the server does nothing.
const bootsPerPeer = 32

// machinePart is what a node is to do besides carrying members and jobs.
type machinePart struct {
	builds   []api.Build
	powerOff *agentstream.PowerOff
}

// updateMachines gives builds to their nodes, and nodes that are to go off the order to do so themselves.
func (d *desiredStates) updateMachines(view *state.View, dirty map[string]bool) {
	parts := map[string]machinePart{}
	for _, b := range view.Builds {
		// A cancelled one is no longer named: its node ends it. Until that is reported it stays running.
		if b.Phase == api.BuildRunning && !b.CancelRequested {
			part := parts[b.Node]
			told := *b
			told.Step, told.Percent, told.Message, told.LogBytes = "", 0, "", 0 // what the node says itself is no news to it
			told.Built = nil                                                    // a node that verifies a build must not know what it should arrive at
			part.builds = append(part.builds, told)
			parts[b.Node] = part
		}
	}
	for _, n := range view.Nodes {
		if boot := toPowerOff(n); boot != 0 {
			part := parts[n.Name]
			part.powerOff = &agentstream.PowerOff{BootGeneration: boot, WithMembers: pauses(n.Machine.Record)}
			parts[n.Name] = part
		}
	}
	for node, part := range parts {
		if !reflect.DeepEqual(part, d.machines[node]) {
			dirty[node] = true
		}
	}
	for node := range d.machines {
		if _, ok := parts[node]; !ok {
			dirty[node] = true
		}
	}
	d.machines = parts
	d.updatePeers(dirty)
}

// pauses reports whether a machine goes off for a pause, with the member that it carries.
func pauses(r *api.MachineRecord) bool { return r.Tenant != nil && r.Tenant.Paused }

// toPowerOff is the generation of the boot whose agent is to power its machine off, 0 for none: that of a machine that goes off, and that of an
// earlier boot than the one decided, which nothing else may reach: not every machine that is on can be reset.
func toPowerOff(n *state.Node) int64 {
	if n.Machine == nil || n.Machine.Record == nil || n.Machine.Record.Boot == nil {
		return 0
	}
	r := n.Machine.Record
	runs := r.Boot.Generation
	if n.Agent != nil && n.Agent.BootGeneration != 0 {
		runs = min(runs, n.Agent.BootGeneration)
	}
	switch r.Phase {
	case api.MachineStopping, api.MachineRemoving:
		if r.Stop != nil {
			return runs
		}
	case api.MachineBooting, api.MachineInspecting, api.MachineCleaning:
		if runs < r.Boot.Generation {
			return runs
		}
	}
	return 0
}

// updatePeers tells nodes that fetch an image where else it is by now.
func (d *desiredStates) updatePeers(dirty map[string]bool) {
	for node, told := range d.peers {
		for digest, list := range told {
			_, fetching := d.holders(digest)
			if _, still := fetching[node]; still && !slices.Equal(list, Peers(d.holders, digest, node)) {
				dirty[node] = true
			}
		}
	}
}

// addImages names the images that the members of a node need.
func (d *desiredStates) addImages(node string, out *agentstream.Desired) {
	need := map[image.Digest]bool{}
	for i := range out.Members {
		if digest := out.Members[i].Assignment.EnvironmentDigest; digest != "" {
			need[image.Digest(digest)] = true
		}
		for _, layer := range out.Members[i].Layers {
			need[image.Digest(layer.Digest)] = true
		}
	}
	delete(d.peers, node)
	if len(need) == 0 {
		return
	}
	told := map[image.Digest][]string{}
	d.peers[node] = told
	out.ImageKey = d.images.PublicKey()
	for _, digest := range slices.Sorted(maps.Keys(need)) {
		signature, err := d.images.Signature(digest)
		if err != nil {
			continue // the member tells that its image is not there
		}
		told[digest] = Peers(d.holders, digest, node)
		out.Images = append(out.Images, agentstream.Image{Digest: digest, Signature: signature, Peers: told[digest]})
	}
}

// Peers are the URLs a node ("" for one that only boots) may fetch an image from besides the server: nodes that hold it, and, for those that
// can do with a part of it, nodes that fetch it themselves. Each is told of others first, so that not all ask the same.
func Peers(holders func(image.Digest) (whole, fetching map[string]string), digest image.Digest, node string) []string {
	whole, fetching := holders(digest)
	if len(fetching) < peersFrom {
		return nil
	}
	serving := maps.Clone(whole)
	if node != "" { // a boot reads what it needs now: one that has not got that is of no use to it
		maps.Copy(serving, fetching)
	}
	delete(serving, node)
	maps.DeleteFunc(serving, func(_, url string) bool { return url == "" })
	names := slices.Sorted(maps.Keys(serving))
	if len(names) == 0 {
		return nil
	}
	hash := fnv.New32a()
	hash.Write([]byte(node))
	first := int(hash.Sum32() % uint32(len(names)))
	if node == "" {
		if rand.IntN(len(fetching)) >= bootsPerPeer*len(names) {
			return nil // the server has the others
		}
		first = rand.IntN(len(names)) // a boot is told once: the list need not stay as it is
	}
	var list []string
	for i := range min(len(names), maxPeers) {
		list = append(list, serving[names[(first+i)%len(names)]])
	}
	return list
}
