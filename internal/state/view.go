package state

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// Cluster is everything stored about a cluster, as of one revision. It is immutable and shared.
type Cluster struct {
	Intent api.ClusterIntent
	// Record is nil before the first decision.
	Record *api.ClusterRecord
	// Revision is that of the newest commit that touched intent or record.
	Revision int64

	intentRevision, recordRevision int64
	chunks                         []decision.Chunk // of Record.Chunks, in their order
	clean                          map[string]bool
	held                           resource.Amounts
	nodes                          []string // those that All has assignments on, in order
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.Intent.Name }

// UID is the cluster's unique ID, which outlives no deletion.
func (c *Cluster) UID() string { return c.Intent.UID }

// Held yields the assignments that are true and not releasing, in rank order within each batch.
func (c *Cluster) Held() iter.Seq[*api.Assignment] { return c.each(true, false) }

// Releasing yields the assignments being released and not yet confirmed clean.
func (c *Cluster) Releasing() iter.Seq[*api.Assignment] { return c.each(false, true) }

// All yields all assignments whose resources are in use: those held and those not yet confirmed clean.
func (c *Cluster) All() iter.Seq[*api.Assignment] { return c.each(true, true) }

// Confirmed tells whether a releasing assignment has been confirmed clean.
func (c *Cluster) Confirmed(assignmentID string) bool { return c.clean[assignmentID] }

// joined returns the UIDs of the project's networks that it joined, in order.
func (c *Cluster) joined() []string {
	if c.Record == nil {
		return nil
	}
	var uids []string
	for _, ref := range c.Record.Joined {
		uids = append(uids, ref.UID)
	}
	slices.Sort(uids)
	return uids
}

// HeldTotal returns the sum of its held assignments, spares included, with 1 cluster when there are any.
func (c *Cluster) HeldTotal() resource.Amounts { return c.held }

// AllWithRef is All, each with the reference of its chunk, which tells whether it is being released and since when.
func (c *Cluster) AllWithRef() iter.Seq2[*api.Assignment, *api.ChunkRef] {
	return func(yield func(*api.Assignment, *api.ChunkRef) bool) {
		for i := range c.chunks {
			ch := &c.chunks[i]
			for j := range ch.Assignments {
				a := &ch.Assignments[j]
				if ch.Ref.Releasing && c.clean[a.ID] {
					continue
				}
				if !yield(a, &ch.Ref) {
					return
				}
			}
		}
	}
}

// Decision is the cluster as decisions see it. It is shared, too: never to be modified.
func (c *Cluster) Decision() decision.Cluster {
	return decision.Cluster{Intent: &c.Intent, Record: c.Record, Chunks: c.chunks}
}

func (c *Cluster) each(held, releasing bool) iter.Seq[*api.Assignment] {
	return func(yield func(*api.Assignment) bool) {
		for a, ref := range c.AllWithRef() {
			if ref.Releasing && !releasing || !ref.Releasing && !held {
				continue
			}
			if !yield(a) {
				return
			}
		}
	}
}

// View is everything stored except events and usage records, as of one revision: immutable, shared, never to be modified. Lists are in the order
// of their names or IDs.
type View struct {
	Revision    int64
	Clusters    []*Cluster
	Nodes       []*Node
	Jobs        []*api.Job
	Quarantines []*api.Quarantine
	// Networks are in the order of their UIDs. NetworkIntents are those of projects' networks.
	Networks       []*api.Network
	NetworkIntents []*api.NetworkIntent
	SecurityGroups []*api.SecurityGroup
	Datasets       []*api.Dataset
	// DataPaths are the measured ways of data to nodes, by node. DataOutcomes are those of predictions, by the UID of the dataset.
	DataPaths    []*api.DataPaths
	DataOutcomes []*api.DataOutcomes
	// Addresses are the floating addresses of all projects, in the order of their texts.
	Addresses []*api.FloatingAddress
	// Volumes are in the order of their UIDs.
	Volumes []*Volume
	// NodeSpans are the present ones, in the order of NodeSpanKey. An older version left closed ones among them.
	NodeSpans []*api.NodeSpan
	// Past is what usage records come to, by project and user; the records themselves are in the store only. UsedUntil is the newest end of
	// a span in one.
	Past      []*usage.Past
	UsedUntil time.Time
	// Projects always has api.DefaultProject.
	Projects []*api.Project
	Shapes   []*api.NamedShape
	// Tokens carry the hashes of their secrets.
	Tokens []*api.TokenInfo

	// Candidates and Leases are in the order of their MACs.
	Candidates []*api.Candidate
	Leases     []*api.Lease
	// EnrollTokens carry the hashes of their secrets.
	EnrollTokens []*api.EnrollmentToken
	Builds       []*api.Build
	// Images are in the order of their digests.
	Images       []*api.Image
	Environments []*api.EnvironmentRecord
	// Offers is equal in two views of a Cache when nodes offer the same in both: no agent's part, no drain, and nothing but
	// the records of machines changed. What a machine's record says changes with every stage of a boot, and nothing here.
	Offers any
	// Leader is the name of the leading candidate, "" when nobody leads.
	Leader string

	clusterUIDs, clusterNodes             directory
	machineUIDs, machineMACs, machineBMCs directory
	networkNames, clusterNetworks         directory
	volumeNames, volumeNodes              directory
	networkUses                           []*netUse
}

// Cluster returns the cluster of that name, or nil.
func (v *View) Cluster(name string) *Cluster { return clusters.find(v, name) }

// Network returns the network of that UID, or nil.
func (v *View) Network(uid string) *api.Network { return networks.find(v, uid) }

// NetworkNamed returns the network of that name, or nil. Of several it is that of the cluster that is there: another's, of the same name
// before it, lives until its quarantined ports are clean.
func (v *View) NetworkNamed(name string) *api.Network {
	all := networks.by(v, networkByName, name)
	if i := slices.IndexFunc(all, func(n *api.Network) bool { return v.ClusterByUID(n.ClusterUID) != nil }); i >= 0 {
		return all[i]
	}
	return first(all)
}

// NetworkIntent returns what a user wants of a project's network of that name, or nil.
func (v *View) NetworkIntent(name string) *api.NetworkIntent { return networkIntents.find(v, name) }

// SecurityGroup returns the security group of that name, or nil.
func (v *View) SecurityGroup(name string) *api.SecurityGroup { return securityGroups.find(v, name) }

// Dataset returns the dataset of that name, or nil.
func (v *View) Dataset(name string) *api.Dataset { return datasets.find(v, name) }

// DataPathsOf returns what is stored of the ways of data to a node, or nil.
func (v *View) DataPathsOf(node string) *api.DataPaths { return dataPaths.find(v, node) }

// OutcomesOf returns what came of predictions about a dataset, by its UID, or nil.
func (v *View) OutcomesOf(uid string) *api.DataOutcomes { return dataOutcomes.find(v, uid) }

// Address returns the floating address that some project has, or nil.
func (v *View) Address(address netip.Addr) *api.FloatingAddress {
	return addresses.find(v, address.String())
}

// ClustersOnNetwork returns the clusters that joined a project's network, by name.
func (v *View) ClustersOnNetwork(uid string) []*Cluster {
	return clusters.by(v, clustersOnNetwork, uid)
}

// NetworkJoin returns a condition on the use of a project's network: nothing has begun to use it since this view.
func (v *View) NetworkJoin(uid string) NetworkJoin {
	j := NetworkJoin{UID: uid}
	if use := networkUses.find(v, uid); use != nil {
		j.revision = use.revision
	}
	return j
}

// Job returns the job of that ID, or nil.
func (v *View) Job(id string) *api.Job { return jobs.find(v, id) }

// Project returns the project of that name, or nil.
func (v *View) Project(name string) *api.Project { return projects.find(v, name) }

// Shape returns a named shape, or nil.
func (v *View) Shape(name string) *api.NamedShape { return shapes.find(v, name) }

// Token returns the token of that ID, or nil.
func (v *View) Token(id string) *api.TokenInfo { return tokens.find(v, id) }

// NodeSpan returns the present span of a node, or nil when there is none.
func (v *View) NodeSpan(node string) *api.NodeSpan {
	// '0' is what comes after '/'.
	i, _ := slices.BinarySearchFunc(v.NodeSpans, node+"0", func(s *api.NodeSpan, k string) int { return strings.Compare(NodeSpanKey(s), k) })
	for i--; i >= 0 && v.NodeSpans[i].Node == node; i-- {
		if s := v.NodeSpans[i]; s.To == nil {
			return s
		}
	}
	return nil
}

// ClusterByUID returns the cluster of that UID, or nil.
func (v *View) ClusterByUID(uid string) *Cluster { return first(clusters.by(v, clusterByUID, uid)) }

// ClustersOnNode returns the clusters that have something in use on a node, by name.
func (v *View) ClustersOnNode(node string) []*Cluster { return clusters.by(v, clustersOnNode, node) }

// OnNode returns the IDs of all assignments of clusters whose resources are in use on a node. What is quarantined there belongs to no
// cluster any more.
func (v *View) OnNode(node string) []string {
	var ids []string
	for _, c := range v.ClustersOnNode(node) {
		for a := range c.All() {
			if a.Node == node {
				ids = append(ids, a.ID)
			}
		}
	}
	return ids
}

// NodeSpanKey is what View.NodeSpans is ordered by.
func NodeSpanKey(s *api.NodeSpan) string { return usageKey(s.Node, s.Seq) }

func find[T any](sorted []*T, key string, keyOf func(*T) string) *T {
	i, ok := slices.BinarySearchFunc(sorted, key, func(v *T, k string) int { return strings.Compare(keyOf(v), k) })
	if !ok {
		return nil
	}
	return sorted[i]
}

// Diff tells what changed from one list of a View to a later one: what is new or changed, and what is gone. Lists of Views share
// what did not change, so this compares pointers only.
func Diff[T any](before, after []*T, keyOf func(*T) string) (changed, gone []*T) {
	if len(before) == len(after) && (len(before) == 0 || &before[0] == &after[0]) {
		return nil, nil // the same list
	}
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(before) > 0 && len(after) > 0 && before[0] == after[0]: // nearly all of them
			before, after = before[1:], after[1:]
		case len(before) == 0 || len(after) > 0 && keyOf(after[0]) < keyOf(before[0]):
			changed, after = append(changed, after[0]), after[1:]
		case len(after) == 0 || keyOf(before[0]) < keyOf(after[0]):
			gone, before = append(gone, before[0]), before[1:]
		default:
			changed = append(changed, after[0])
			before, after = before[1:], after[1:]
		}
	}
	return changed, gone
}
