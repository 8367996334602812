package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// rooms is what the pools of nodes have left, by node: the capacity less the sizes of the volumes that lie there and what snapshots hold. Volumes
// that the site knows nothing of take room, too.
type rooms map[string]int64

func newRooms(s *Situation) rooms {
	left := rooms{}
	known := map[string]string{}
	for i := range s.Volumes {
		if r := s.Volumes[i].Record; r != nil {
			left[r.Node] -= r.SizeBytes
			known[r.UID] = r.Node
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Pool != nil {
			left[n.Name] += n.Pool.CapacityBytes
		}
		for _, seen := range n.Volumes {
			if known[seen.UID] != n.Name {
				left[n.Name] -= seen.SizeBytes
			}
			for _, snapshot := range seen.Snapshots {
				left[n.Name] -= snapshot.HeldBytes
			}
		}
	}
	return left
}

// left returns the bytes that a node's pool has left, never less than 0.
func (r rooms) left(node string) int64 { return max(r[node], 0) }

func (r rooms) take(node string, bytes int64) { r[node] -= bytes }

// choose returns the node for a new volume, or why there is none.
func (s *Situation) choose(v *Volume, rooms rooms) (node, reason string) {
	wanted := v.Intent.Node
	if o := v.Intent.Origin; o.IsSnapshot() {
		origin := s.volume(o.VolumeUID)
		switch {
		case origin == nil || origin.Record != nil && origin.Record.Purging:
			return "", "the volume that it is to be a clone of is gone"
		case origin.Record == nil:
			return "", fmt.Sprintf("volume %q, which it is to be a clone of, has no node yet", ownName(origin.Intent.Name))
		}
		wanted = origin.Record.Node
	}
	need := v.Intent.SizeBytes
	if wanted != "" {
		n := s.node(wanted)
		if n == nil {
			return "", fmt.Sprintf("node %s is not known", wanted)
		}
		if why := n.unusable(); why != "" {
			return "", fmt.Sprintf("node %s %s", n.Name, why)
		}
		if left := rooms.left(n.Name); left < need {
			return "", fmt.Sprintf("node %s has %s of %s left for volumes, and %s are needed", n.Name, bytesText(left), bytesText(n.Pool.CapacityBytes), bytesText(need))
		}
		return n.Name, ""
	}
	best, beside := "", s.nodesOf(v.Intent.Project)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Drained || n.unusable() != "" || rooms.left(n.Name) < need {
			continue
		}
		switch {
		case best == "" || beside[n.Name] && !beside[best]:
			best = n.Name
		case beside[n.Name] == beside[best] && rooms.left(n.Name) > rooms.left(best):
			best = n.Name
		}
	}
	if best != "" {
		return best, ""
	}
	return "", s.noRoom(need, rooms)
}

// nodesOf are the nodes on which volumes of a project lie: a cluster can have several volumes only where they lie together.
func (s *Situation) nodesOf(project string) map[string]bool {
	nodes := map[string]bool{}
	for i := range s.Volumes {
		if v := &s.Volumes[i]; v.Record != nil && v.Intent != nil && v.Intent.DeleteRequestedAt == nil && v.Intent.Project == project {
			nodes[v.Record.Node] = true
		}
	}
	return nodes
}

// unusable is why nothing can be made on a node, "" when it can.
func (n *Node) unusable() string {
	switch {
	case !n.Heard:
		return "is not heard of"
	case n.Pool == nil:
		return "has no pool for volumes"
	case len(n.Pool.Problems) > 0:
		return "has no pool for volumes that works: " + n.Pool.Problems[0]
	case n.Pool.Kind == "":
		return "has no pool for volumes"
	}
	return ""
}

// undecided reports whether a volume without a place may get one as soon as a node is heard of that is not held to be down.
func (s *Situation) undecided(v *Volume) bool {
	wanted := v.Intent.Node
	if o := v.Intent.Origin; o.IsSnapshot() {
		origin := s.volume(o.VolumeUID)
		if origin == nil || origin.Record == nil {
			return false
		}
		wanted = origin.Record.Node
	}
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return !n.Heard && !n.Down && (wanted == "" || wanted == n.Name) })
}

// shownNodes is how many nodes a reason names.
const shownNodes = 3

// noRoom says why no node can have a new volume.
func (s *Situation) noRoom(need int64, rooms rooms) string {
	var full, out []string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		why := n.unusable()
		if why == "" && n.Drained {
			why = "is drained"
		}
		if why != "" {
			out = append(out, fmt.Sprintf("node %s %s", n.Name, why))
			continue
		}
		full = append(full, fmt.Sprintf("node %s has %s of %s", n.Name, bytesText(rooms.left(n.Name)), bytesText(n.Pool.CapacityBytes)))
	}
	switch {
	case len(full) > 0:
		full[0] += " left"
		return fmt.Sprintf("no node has %s left for volumes: %s", bytesText(need), few(append(full, out...)))
	case len(out) > 0:
		return "no node can keep volumes now: " + few(out)
	}
	return "the site has no node yet that could keep volumes"
}

// few joins the first of some texts, and counts the others.
func few(texts []string) string {
	if more := len(texts) - shownNodes; more > 0 {
		texts = append(texts[:shownNodes:shownNodes], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

func bytesText(n int64) string { return resource.Storage.Number(n) }

// ownName is the name that a volume has within its project.
func ownName(full string) string { return full[strings.LastIndexByte(full, '.')+1:] }

// Left returns how many bytes the pool of a node has left, and of how many. ok is false if it can't be used.
func Left(s Situation, node string) (left int64, pool api.VolumePool, ok bool) {
	n := s.node(node)
	if n == nil || n.Pool == nil {
		return 0, api.VolumePool{}, false
	}
	return newRooms(&s).left(node), *n.Pool, n.unusable() == ""
}
